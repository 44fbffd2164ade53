"""What ranks compute around their parts of the MoE layers: attention, embedding, dense FFN and head.

Shapes: ``T`` tokens of a DP group, ``H`` hidden, ``V`` vocabulary, ``t`` ranks of a group (TP).

A DP group computes these for all of its own requests. Its ranks divide the heads, the dense FFN and the vocabulary
among them, each holds its part of the weights and of the KV cache, and all of them hold the residual stream [T, H]. As
in vLLM's sequence-parallel MoE (``sequence_parallel_chunk`` and ``tensor_model_parallel_all_gather`` in its
``qwen3_moe.py``), an all-reduce sums what the ranks' heads make; then each rank takes its part of the tokens through
the MoE layer, and an all-gather brings the parts together again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench_worker.layer import dense
from bench_worker.network import Around, Network
from bench_worker.parallel.exchange import Exchange
from bench_worker.parallel.group_traffic import GroupTraffic
from bench_worker.parallel.layout import Layout
from bench_worker.roofline import Work, around_work
from bench_worker.scaling import top
from bench_worker.spec import Spec
from bench_worker.stages import UNTIMED, Clock
from bench_worker.step_input import StepInput
from bench_worker.step_layout import Segment, StepLayout
from bench_worker.workload.schedule import Batch


class RankAround:
    """One step of one rank: ``token_ids`` int64 [T] and ``layout`` are its group's, ``own`` are the rows among them
    that it takes through the MoE layers. ``hidden`` is the residual stream, ``update`` what is still to be added."""

    def __init__(self, around: Around, token_ids: Tensor, layout: StepLayout, own: slice) -> None:
        self.around, self.token_ids, self.layout, self.own = around, token_ids, layout, own
        self.hidden, self.update = token_ids.new_empty(0), around.no_update

    def embed(self) -> Tensor:
        return self.around.embed(self.token_ids)

    def dense_ffn(self) -> Tensor:
        assert self.around.dense is not None
        return dense(self.hidden, self.around.dense)

    def attend(self, layer: int, stage: str) -> Tensor:
        """What this rank's heads add to the stream, of one block of a layer."""
        block = self.around.attention[layer][stage]
        self.hidden, self.update = self.hidden + self.update, self.around.no_update
        if not self.layout.num_tokens:
            return self.hidden
        return block.attend(block.before(self.hidden), self.layout)

    def attended(self, sum_of_heads: Tensor, layer: int, stage: str) -> Tensor:
        """This rank's part of the input of a MoE layer, after all heads of the block."""
        self.hidden = self.hidden + sum_of_heads
        return self.around.attention[layer][stage].after(self.hidden)[self.own]

    def block(self, layer: int, stage: str) -> Tensor:
        """Both, of a rank that has all heads."""
        return self.attended(self.attend(layer, stage), layer, stage)

    def logits(self) -> Tensor:
        """[Y, V / t] of the tokens that yield one."""
        return self.around.logits(self.hidden, self.update, self.layout.yielding)


class RanksAround:
    """One step of the executed ranks, in groups of ``tp``. A rank without tokens makes the same marks on its clock."""

    def __init__(self, ranks: Sequence[RankAround], exchange: Exchange, tp: int) -> None:
        self.ranks, self._exchange, self._tp = ranks, exchange, tp

    def begin(self, clocks: Sequence[Clock]) -> None:
        """Embedding, and the dense layers where the model has any."""
        parts = self._each("other.embedding", clocks, RankAround.embed)
        for one, hidden in zip(self.ranks, self._summed(parts, "other.embedding", clocks), strict=True):
            one.hidden = hidden
        if self.ranks[0].around.dense is not None:
            parts = self._each("other.dense_ffn", clocks, RankAround.dense_ffn)
            self._update(self._summed(parts, "other.dense_ffn", clocks))

    def attend(self, layer: int, clocks: Sequence[Clock]) -> list[Tensor]:
        """Each rank's part of the input of a MoE layer."""
        normed: list[Tensor] = []
        for stage in self.ranks[0].around.attention[layer]:
            if self._tp == 1:
                normed = self._each(stage, clocks, partial(RankAround.block, layer=layer, stage=stage))
                continue
            heads = heads_stage(stage)
            parts = self._each(heads, clocks, partial(RankAround.attend, layer=layer, stage=stage))
            summed = self._summed(parts, stage, clocks)
            normed = self._each(heads, clocks, partial(RankAround.attended, layer=layer, stage=stage), summed)
        return normed

    def leave(self, outputs: Sequence[Tensor], clocks: Sequence[Clock]) -> None:
        """Take each rank's ``outputs`` of the MoE layer to its group."""
        if self._tp == 1:
            self._update(outputs)
            return
        self._update(self._exchange.all_gather(outputs, [one.layout.num_tokens for one in self.ranks]))
        for clock in clocks:
            clock.outer("attention.all_gather")

    def end(self, clocks: Sequence[Clock]) -> None:
        """Logits of the tokens that yield one, on every rank of their group."""
        parts = self._each("other.head", clocks, RankAround.logits)
        if self._tp > 1:
            self._exchange.all_gather(parts, [self._tp * len(part) for part in parts])
            for clock in clocks:
                clock.outer("other.head.all_gather")

    def _each(
        self, stage: str, clocks: Sequence[Clock], compute: Callable[..., Tensor], *given: Sequence[Tensor]
    ) -> list[Tensor]:
        made = []
        for one, clock, *own in zip(self.ranks, clocks, *given, strict=True):
            clock.outer(UNTIMED)
            made.append(compute(one, *own))
            clock.outer(stage)
        return made

    def _summed(self, parts: list[Tensor], stage: str, clocks: Sequence[Clock]) -> list[Tensor]:
        if self._tp == 1:
            return parts
        summed = self._exchange.all_reduce(parts)
        for clock in clocks:
            clock.outer(f"{stage}.all_reduce")
        return summed

    def _update(self, updates: Sequence[Tensor]) -> None:
        for one, update in zip(self.ranks, updates, strict=True):
            one.update = update


def heads_stage(stage: str) -> str:
    """The leaf of a block's own work beside that of its all-reduce."""
    return stage if "." in stage else f"{stage}.heads"


def around_step(network: Network, layout: Layout, exchange: Exchange, inputs: StepInput) -> RanksAround | None:
    """What stands around the layers on the executed ranks in one step, made ready; None where it is not measured."""
    if not network.has_attention:
        return None
    groups = [torch.from_numpy(rows).to(network.device) for rows in layout.rows_of_groups(*inputs.layout.requests)]
    parts = [(inputs.token_ids[rows], part_of(inputs.layout, rows)) for rows in groups]
    ranks = []
    for rank in exchange.ranks:
        group, member = divmod(rank, layout.tp)
        own = np.array_split(np.arange(len(groups[group])), layout.tp)
        first = sum(len(part) for part in own[:member])
        ranks.append(RankAround(network.parts[member], *parts[group], slice(first, first + len(own[member]))))
    return RanksAround(ranks, exchange, layout.tp)


def traffic_of(network: Network, layout: Layout, step: StepLayout) -> GroupTraffic | None:
    """What tensor-parallel groups exchange in ``step``; None where there are none."""
    if not network.has_attention or layout.tp == 1:
        return None
    rows, yielding = layout.rows_of_groups(*step.requests), step.yielding.cpu().numpy()
    size = network.dtype.itemsize
    return GroupTraffic(
        layout=layout,
        tokens=np.array([len(own) for own in rows]),
        yields=np.array([np.isin(own, yielding).sum() for own in rows]),
        row_bytes=network.model.hidden * size,
        logits_bytes=-(-network.model.vocab // layout.tp) * size,
    )


def work_of(rank: int, network: Network, layout: Layout, spec: Spec, batch: Batch, in_turn: bool) -> dict[str, Work]:
    """What ``rank`` has to do around its MoE layers in the step of ``batch``, by leaf: for the requests of its group,
    with its share of heads, dense FFN and vocabulary. Empty where that is not measured.

    ``in_turn``: ranks of one process hold each member's weights once, so that one of a later group may find in the
    cache what the group before it read. Of those weights, as of rows, only what exceeds the cache counts.
    """
    if not network.has_attention:
        return {}
    group = rank // layout.tp
    own = batch.part(layout.group_of_request(batch.table[:, 0]) == group)
    work = around_work(spec, network.model, own, layout.tp)
    if in_turn and group:
        work = {leaf: replace(one, weight_bytes=0.0, reread_bytes=one.weight_bytes) for leaf, one in work.items()}
    if layout.tp == 1:
        return work
    return {heads_stage(leaf) if top(leaf) == "attention" else leaf: one for leaf, one in work.items()}


def part_of(layout: StepLayout, own: Tensor) -> StepLayout:
    """The part of a step with the rows ``own`` int64 [T], ascending, which are whole requests."""
    segments, start = [], 0
    first = set(own.tolist())
    for segment in layout.segments:
        if segment.start in first:
            segments.append(Segment(segment.slot, start, segment.length, segment.context, segment.request))
            start += segment.length
    yielding = torch.isin(own, layout.yielding).nonzero().flatten()
    return StepLayout(segments, layout.slot[own], layout.position[own], yielding)
