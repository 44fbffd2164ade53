"""What goes into a step: token ids, hidden states and router scores, made fresh for every step, outside the clock.

Shapes: ``T`` tokens of the step, ``H`` hidden, ``E`` experts.

All variants of a condition get the same inputs at the same step. Nothing is reused from step to step, so neither
routing nor caches can settle on one input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench_worker.network import Network
from bench_worker.spec import Load
from bench_worker.step_layout import StepLayout
from bench_worker.workload.scores import gumbel_scores, popularity


@dataclass(frozen=True)
class StepInput:
    """``token_ids`` int64 [T]; ``hidden`` [T, H]: the MoE layer's input where attention isn't measured, else empty;
    ``scores`` [T, E] float32 of each executed layer."""

    layout: StepLayout
    token_ids: Tensor
    hidden: Tensor
    scores: list[Tensor]


class StepSource:
    """Makes the inputs of the steps of one condition. ``seed`` decides which experts are hot; ``repeat`` draws the
    same schedule's tokens anew."""

    def __init__(self, seed: int, repeat: int = 0) -> None:
        self._seed, self._repeat = seed, repeat
        self._generator = torch.Generator()
        self._popularity: dict[tuple[Load, int, int], Tensor] = {}

    def make(self, network: Network, load: Load, step: int, layout: StepLayout) -> StepInput:
        """The inputs of ``step``. The same arguments always give the same values."""
        tokens, model, device = layout.num_tokens, network.model, network.device
        self._generator.manual_seed((self._seed * 1009 + self._repeat) * 1_000_003 + step)
        scores = [  # first, so that they are the same whether hidden states are drawn or not
            gumbel_scores(self._weights(load, model.experts, layer), tokens, self._generator)
            for layer in range(len(network.layers))
        ]
        token_ids = torch.randint(2**31, (tokens,), generator=self._generator) % model.vocab
        hidden = torch.empty(tokens if network.around is None else 0, model.hidden)
        hidden.normal_(generator=self._generator)
        return StepInput(layout, token_ids.to(device), hidden.to(device, network.dtype), [s.to(device) for s in scores])

    def _weights(self, load: Load, num_experts: int, layer: int) -> Tensor:
        key = (load, num_experts, layer)
        if key not in self._popularity:
            self._popularity[key] = popularity(load.profile, num_experts, load.skew, self._seed + layer)
        return self._popularity[key]
