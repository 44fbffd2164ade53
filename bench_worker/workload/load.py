"""The router scores of every step of a condition, with the expert load that an experiment asks for.

Shapes: ``T`` tokens of a step, ``E`` experts, ``L`` executed layers, ``k`` experts a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench_worker.spec import Load
from bench_worker.step_layout import Segment, StepLayout
from bench_worker.workload.plackett_luce import fit_weights
from bench_worker.workload.recordings import Recording, recorded_layers
from bench_worker.workload.scores import popularity, rank_first, repeated, score


class ExpertLoad:
    """Scores of one load for ``layers`` executed layers of a model with ``num_experts`` experts, ``top_k`` a token.

    ``uniform`` and ``zipf``: each executed layer has its own hot experts. ``recorded``: each step draws, for each
    executed layer, one of the recording's layers; with ``layers_stay`` they are `recorded_layers` in every step, since
    experts are placed layer by layer. A recording of single tokens is replayed: request r reads the
    recording's sequence r, round and round, token by token. With ``correlation``, the noise on an expert's score stays
    from one token of a request to the next with that chance, over steps as well; a replay needs none.
    """

    def __init__(
        self,
        load: Load,
        num_experts: int,
        top_k: int,
        layers: int,
        seed: int,
        recording: Recording | None,
        layers_stay: bool = False,
    ) -> None:
        self.layers_stay = layers_stay
        self.load, self.num_experts, self.top_k, self.layers = load, num_experts, top_k, layers
        self.seed, self.recording = seed, recording
        self._weights: dict[int, Tensor] = {}
        self._last: dict[int, Tensor] = {}  # by slot: the noise [L, E] of its last token
        self._made: tuple[int, list[Tensor]] | None = None  # the latest step's scores, which all variants share

    def scores(self, step: int, layout: StepLayout, generator: torch.Generator) -> list[Tensor]:
        """Scores [T, E] float32 of each executed layer. With ``correlation``, steps follow one another."""
        if self._made is None or self._made[0] != step:
            self._made = step, self._make(layout, generator)
        return self._made[1]

    def _make(self, layout: StepLayout, generator: torch.Generator) -> list[Tensor]:
        rows = list(range(self.layers))
        if self.recording is not None and self.layers_stay:
            rows = recorded_layers(len(self.recording.layers), self.layers).tolist()
        elif self.recording is not None:
            rows = torch.randint(len(self.recording.layers), (self.layers,), generator=generator).tolist()
        noise = torch.empty(layout.num_tokens, self.layers, self.num_experts).exponential_(generator=generator)
        if self.load.correlation:
            self._carry_on(noise, layout.segments, generator)
        scores = [score(self._weight(row), noise[:, layer]) for layer, row in enumerate(rows)]
        if self.recording is None or self.recording.ids is None:
            return scores
        token = _recorded_tokens(self.recording, layout.segments)
        experts = torch.from_numpy(self.recording.ids)[token].long()  # [T, recorded layers, k]
        return [rank_first(of_layer, experts[:, row]) for of_layer, row in zip(scores, rows, strict=True)]

    def _weight(self, row: int) -> Tensor:
        """Weights [E] of the executed layer ``row``, or of the recording's row."""
        if row not in self._weights:
            if self.recording is not None:
                self._weights[row] = torch.from_numpy(fit_weights(self.recording.shares[row], self.top_k))
            else:
                load = self.load
                self._weights[row] = popularity(load.profile, self.num_experts, load.skew, self.seed + row)
        return self._weights[row]

    def _carry_on(self, noise: Tensor, segments: list[Segment], generator: torch.Generator) -> None:
        """Let each request's noise [T, L, E] stay, expert by expert, with the chance of ``correlation``."""
        keep = torch.rand(noise.shape, generator=generator) < self.load.correlation
        for segment in segments:
            span = slice(segment.start, segment.start + segment.length)
            before = self._last.get(segment.slot) if segment.context else None
            fresh = noise[span] if before is None else torch.cat([before[None], noise[span]])
            kept = keep[span] if before is None else torch.cat([keep[span][:1], keep[span]])
            noise[span] = repeated(fresh.flatten(1), kept.flatten(1)).view(fresh.shape)[-segment.length :]
            self._last[segment.slot] = noise[span.stop - 1].clone()


def _recorded_tokens(recording: Recording, segments: list[Segment]) -> Tensor:
    """The recording's token int64 [T] that each row of the step replays."""
    assert recording.lengths is not None
    lengths = torch.from_numpy(recording.lengths)
    starts = lengths.cumsum(0) - lengths
    tokens = []
    for segment in segments:
        sequence = segment.request % len(lengths)
        position = torch.arange(segment.context, segment.context + segment.length)
        tokens.append(starts[sequence] + position % lengths[sequence])
    return torch.cat(tokens)
