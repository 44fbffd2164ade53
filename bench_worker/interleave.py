"""Times several MoE layers side by side: in rounds, each once a round, in an order that rotates."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from bench_worker.routing import Assignments, SoftSlots
from bench_worker.stages import Clock

#: A layer this many times longer than its lead-in hardly feels what ran before it.
NO_LEAD_IN = 10


class LayerInput(NamedTuple):
    """``hidden`` [T, H], ``scores`` [T, E], which the router has checked, and ``token_ids`` int64 [T]."""

    hidden: Tensor
    scores: Tensor
    token_ids: Tensor


class Layer(Protocol):
    """Anything that computes a MoE layer and marks its stages."""

    def forward(
        self, hidden: Tensor, scores: Tensor, clock: Clock, token_ids: Tensor | None = None
    ) -> tuple[Tensor, Assignments | SoftSlots]: ...

    def computed_rows(self, counts: np.ndarray, num_tokens: int) -> int: ...


@dataclass(frozen=True)
class Reading:
    """What the clock read of one call: times by stage in µs, of layer ``name`` on input number ``item``."""

    name: str
    item: int
    times_us: dict[str, float]


def interleaved(
    layers: Mapping[str, Layer],
    inputs: Sequence[LayerInput],
    clock: Clock,
    rounds: int,
    seconds: float,
    between: Callable[[], None] = lambda: None,
    lead_in_s: float = 0.0,
) -> list[Reading]:
    """Up to ``rounds`` rounds over ``layers``, in the order of the calls.

    All layers get the same of the ``inputs`` in a round; the inputs rotate, so that no round finds the experts of the
    one before in the caches. Each layer is called on each input once before. Rounds end after ``seconds``, but not
    before the third. ``between`` runs before every timed call. The layer then runs untimed on the other inputs until
    ``lead_in_s`` have passed: a step follows steps of its own, and a short one still feels whatever else ran. A layer
    that takes more than `NO_LEAD_IN` times as long goes without.
    """
    names = list(layers)
    spent_s = dict.fromkeys(names, 0.0)
    for given in inputs:
        for name, layer in layers.items():
            started = time.monotonic()
            layer.forward(given.hidden, given.scores, clock, given.token_ids)
            spent_s[name] = time.monotonic() - started
    readings: list[Reading] = []
    deadline = time.monotonic() + seconds
    for turn in range(rounds):
        if turn >= 3 and time.monotonic() > deadline:
            break
        item = turn % len(inputs)
        hidden, scores, token_ids = inputs[item]
        others = [*inputs[item + 1 :], *inputs[:item]] or [inputs[item]]
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            between()
            if spent_s[name] < NO_LEAD_IN * lead_in_s:
                _lead_in(layers[name], others, clock, lead_in_s)
            clock.begin()
            layers[name].forward(hidden, scores, clock, token_ids)
            readings.append(Reading(name, item, clock.read()))
    return readings


def _lead_in(layer: Layer, inputs: Sequence[LayerInput], clock: Clock, seconds: float) -> None:
    """Steps of ``layer``, ``inputs`` in turn, until ``seconds`` have passed; one at least."""
    until = time.monotonic() + seconds
    for hidden, scores, token_ids in itertools.cycle(inputs):
        layer.forward(hidden, scores, clock, token_ids)
        if time.monotonic() >= until:
            return
