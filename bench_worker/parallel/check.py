"""The comparison of ranks with their own slow reference, made before anything is timed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bench_worker import reference
from bench_worker.capacity import CHECK_TOKENS
from bench_worker.result import Check
from bench_worker.routing import Assignments, SoftSlots
from bench_worker.routing.reference import Wrong, expected
from bench_worker.stages import NoClock
from bench_worker.step_input import StepInput
from bench_worker.step_layout import one_token_each
from bench_worker.variant import COMPARED_TOKENS, TOLERANCES
from bench_worker.weights import Weights

if TYPE_CHECKING:
    from bench_worker.parallel.variant import ParallelVariant, RankInput


def check(variant: ParallelVariant) -> Check:
    """The first layer of ``variant`` against the float64 reference of each rank's own tokens, with all buffers poisoned
    first; the worst of all ranks, also where each is a process of its own."""
    model, network = variant.network.model, variant.network
    device = network.device
    hidden = Weights(network.dtype, device, seed=1).noise(CHECK_TOKENS, model.hidden)
    scores = Weights(torch.float32, device, seed=2).noise(CHECK_TOKENS, model.experts)
    token_ids = torch.arange(CHECK_TOKENS, device=device) % model.vocab
    variant.reserve(CHECK_TOKENS)
    layout = one_token_each(CHECK_TOKENS, device)
    given = variant.split(StepInput(layout, token_ids, hidden, [scores] * len(variant.layers)))
    clocks = [NoClock() for _ in given]
    variant.forward(0, given, clocks)  # makes the buffers as large as they get
    variant.poison()
    done = variant.forward(0, given, clocks)
    each = max(1, COMPARED_TOKENS // variant.layout.num_ranks)
    parts = zip(given, done.outputs, done.routed, strict=True)
    errors = variant.exchange.gather([_error(variant, own, output, routed, each) for own, output, routed in parts])
    return Check(
        rel_error=max(errors), tolerance=TOLERANCES[variant.spec.kernels.dtype], tokens=each * variant.layout.num_ranks
    )


def _error(
    variant: ParallelVariant, given: RankInput, output: Tensor, routed: Assignments | SoftSlots, tokens: int
) -> float:
    """The worst relative error of the first ``tokens`` of one rank."""
    compared = list(range(min(tokens, len(given.hidden))))
    if not compared:
        return 0.0
    try:
        choices = expected(variant.router, given.scores[0], given.token_ids, routed)
    except Wrong:
        return math.inf
    model = variant.network.model
    correct = reference.layer(
        given.hidden, variant.network.layers[0], choices, model.expert_activation, model.weight_on_input, compared
    )
    return reference.relative_error(output[compared], correct)
