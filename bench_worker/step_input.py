"""What goes into a step: token ids, hidden states and router scores, made fresh for every step, outside the clock.

Shapes: ``T`` tokens of the step, ``H`` hidden, ``E`` experts, ``V`` vocabulary.

All variants of a condition get the same inputs at the same step. Nothing is reused from step to step, so neither
routing nor caches can settle on one input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bench_worker.network import Network
from bench_worker.spec import Load
from bench_worker.step_layout import StepLayout
from bench_worker.workload.load import ExpertLoad
from bench_worker.workload.recordings import Recording
from bench_worker.workload.scores import zipf


@dataclass(frozen=True)
class StepInput:
    """``token_ids`` int64 [T]; ``hidden`` [T, H]: the MoE layer's input where attention isn't measured, else empty;
    ``scores`` [T, E] float32 of each executed layer."""

    layout: StepLayout
    token_ids: Tensor
    hidden: Tensor
    scores: list[Tensor]


class StepSource:
    """Makes the inputs of the steps of one condition, in the order of its schedule. ``seed`` decides which experts and
    which token ids are hot; ``repeat`` draws the same schedule's tokens anew. ``recordings`` holds the ones that loads
    name."""

    def __init__(self, seed: int, repeat: int = 0, recordings: Mapping[str, Recording] | None = None) -> None:
        self._seed, self._repeat, self._recordings = seed, repeat, recordings or {}
        self._loads: dict[tuple[Load, int, int, int, bool], ExpertLoad] = {}
        self._token_odds: dict[int, Tensor] = {}  # cumulative, by vocabulary

    def make(self, network: Network, load: Load, step: int, layout: StepLayout, layers_stay: bool = False) -> StepInput:
        """The inputs of ``step``; the same ones for all variants that share model, layers and load. ``layers_stay``: an
        executed layer replays the same layer of a recording in every step."""
        model, device = network.model, network.device
        tokens = layout.num_tokens
        key = (load, model.experts, model.top_k, len(network.layers), layers_stay)
        if key not in self._loads:
            recording = self._recordings[load.recording] if load.recording is not None else None
            self._loads[key] = ExpertLoad(*key[:-1], self._seed, recording, layers_stay)
        scores = self._loads[key].scores(step, layout, self._generator(step, 0))
        generator = self._generator(step, 1)
        token_ids = self._token_ids(model.vocab, tokens, generator)
        hidden = torch.empty(0 if network.has_attention else tokens, model.hidden)
        hidden.normal_(generator=generator)
        return StepInput(layout, token_ids.to(device), hidden.to(device, network.dtype), [s.to(device) for s in scores])

    def _generator(self, step: int, stream: int) -> torch.Generator:
        seed = ((self._seed * 1009 + self._repeat) * 1_000_003 + step) * 2 + stream
        return torch.Generator().manual_seed(seed)

    def _token_ids(self, vocab: int, count: int, generator: torch.Generator) -> Tensor:
        """Ids as often as words are: the n-th most frequent at 1/n of the first, in seeded order (Zipf)."""
        if vocab not in self._token_odds:
            self._token_odds[vocab] = zipf(vocab, 1.0, self._seed).cumsum(0)
        cumulative = self._token_odds[vocab]
        drawn = torch.rand(count, dtype=torch.float64, generator=generator) * cumulative[-1]
        return torch.searchsorted(cumulative, drawn, right=True).clamp(max=vocab - 1)
