"""All-to-all with uneven splits, so that its time on a rank is that of the wires: NCCL's on CUDA, own messages on gloo.

Gloo's own differs from that in two ways, each of which a slow wire shows (`docs/parallel.md`):

- It posts a rank's send before its receive. Rows leave only once their receiver has told that it is ready, and what
  the last rank to come has to tell then waits behind its own rows: the two ways of a pair run one after the other.
- A send ends when the kernel has buffered it, megabytes ahead of the wire.

Here receives come first, and a rank ends when it has its rows and has heard that those it sent have arrived.

Shapes: ``R`` ranks, ``N`` rows sent, ``M`` rows received.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["all_to_all"]

#: Tag of the empty message that says: your rows are here.
ARRIVED = 1
#: Fewer bytes than this are on the wire for less time than that message costs.
WORTH_TELLING_BYTES = 64 * 1024


def all_to_all(
    into: Tensor, rows: Tensor, into_splits: list[int], splits: list[int], group: dist.ProcessGroup | None = None
) -> None:
    """``splits`` [R] of ``rows`` [N, …] to each rank, ``into_splits`` [R] of ``into`` [M, …] from each; both
    contiguous, of one type that has bytes. It ends on no rank before all of them have come."""
    # As bytes: gloo knows no bfloat16.
    into, rows = into.view(torch.uint8), rows.view(torch.uint8)
    if dist.get_backend(group) == "nccl":
        dist.all_to_all_single(into, rows, into_splits, splits, group=group)
        return
    size, own = dist.get_world_size(group), dist.get_rank(group)
    peers = [(own + step) % size for step in range(1, size)]
    coming, going, word = into.split(into_splits), rows.split(splits), rows.new_empty(0)
    arriving = [_receive(coming[peer], peer, group) for peer in peers]
    leaving = [_receive(word, peer, group, ARRIVED) for peer in peers if _worth_telling(going[peer])]
    leaving += [_send(going[peer], peer, group) for peer in peers]
    coming[own].copy_(going[own])
    for peer, arrival in zip(peers, arriving, strict=True):
        arrival.wait()
        if _worth_telling(coming[peer]):
            leaving.append(_send(word, peer, group, ARRIVED))
    for departure in leaving:
        departure.wait()


def _worth_telling(rows: Tensor) -> bool:
    return rows.numel() >= WORTH_TELLING_BYTES


def _receive(into: Tensor, peer: int, group: dist.ProcessGroup | None, tag: int = 0) -> dist.Work:
    return cast(dist.Work, dist.irecv(into, group=group, tag=tag, group_src=peer))


def _send(rows: Tensor, peer: int, group: dist.ProcessGroup | None, tag: int = 0) -> dist.Work:
    return cast(dist.Work, dist.isend(rows, group=group, tag=tag, group_dst=peer))
