"""What one rank computes around its part of the MoE layers: attention over its own requests, embedding and head.

Shapes: ``T`` tokens of this rank, ``H`` hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench_worker.layer import dense
from bench_worker.network import Around
from bench_worker.stages import Clock
from bench_worker.step_layout import Segment, StepLayout


class RankAround:
    """One step of one rank, marked stage by stage as on a single one. A rank without tokens makes the same marks."""

    def __init__(self, around: Around, token_ids: Tensor, layout: StepLayout) -> None:
        self._around, self._token_ids, self._layout = around, token_ids, layout
        self._hidden, self.update = token_ids.new_empty(0), around.no_update

    def begin(self, clock: Clock) -> None:
        """Embedding, and the dense layers where the model has any."""
        self._hidden = self._around.embed(self._token_ids)
        clock.outer("other.embedding")
        if self._around.dense is not None:
            self.update = dense(self._hidden, self._around.dense)
            clock.outer("other.dense_ffn")

    def attend(self, layer: int, clock: Clock) -> Tensor:
        """The input [T, H] of a MoE layer. ``update`` is the output of the one before."""
        normed = self._hidden
        for stage, block in self._around.attention[layer].items():
            if self._layout.num_tokens:
                self._hidden, normed = block.forward(self._hidden, self.update, self._layout)
            self.update = self._around.no_update
            clock.outer(stage)
        return normed

    def end(self, clock: Clock) -> None:
        """Logits of the tokens that yield one."""
        if self._layout.num_tokens:
            self._around.logits(self._hidden, self.update, self._layout.yielding)
        clock.outer("other.head")


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
