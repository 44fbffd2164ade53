"""The comparison of ranks with their own slow reference, made before anything is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bench_worker import checking
from bench_worker.capacity import CHECK_TOKENS
from bench_worker.checking import COMPARED_TOKENS, Errors, Given
from bench_worker.result import Check
from bench_worker.routing import Assignments, SoftSlots
from bench_worker.stages import NoClock
from bench_worker.step_input import StepInput
from bench_worker.step_layout import one_token_each
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
    found = variant.exchange.gather([_errors(variant, own, output, routed, each) for own, output, routed in parts])
    rounds = variant.layers[0][0].experts.rows_format  # of every rank
    return checking.check([(one, rounds) for one in found], variant.spec, each * variant.layout.num_ranks)


def _errors(
    variant: ParallelVariant, given: RankInput, output: Tensor, routed: Assignments | SoftSlots, tokens: int
) -> Errors:
    """The worst relative errors of the first ``tokens`` of one rank."""
    compared = list(range(min(tokens, len(given.hidden))))
    if not compared:
        return Errors(0.0)
    own = Given(given.hidden, given.scores[0], given.token_ids)
    return checking.errors(variant.network, variant.spec, variant.router, own, output, routed, compared)
