"""A variant's output against the slow float64 reference, before anything is timed: on one rank or on many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from bench_worker import reference
from bench_worker.network import Network
from bench_worker.result import Check
from bench_worker.routing import Assignments, Router, SoftSlots
from bench_worker.routing.reference import Wrong, expected
from bench_worker.spec import Spec

#: Largest error against the reference that a variant may show, by dtype.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
#: The same of a kernel that rounds its rows to int8 before each product, which the reference does not: half a step of
#: a 127th of the largest value each, 0.8% of a normal row, and more of what the activation makes of it.
ROUNDED_ROWS_TOLERANCE = 5e-2
#: Tokens of the checked batch that are compared.
COMPARED_TOKENS = 8


class Errors(NamedTuple):
    """``kernel``: of the output against the reference with the same weights, rounded where they are quantized.
    ``quantization``: of that reference's against the one with unrounded weights; 0 where none are quantized."""

    kernel: float
    quantization: float = 0.0


#: Of an output whose experts are not those that its router should have chosen.
WRONG = Errors(math.inf, math.inf)


class Given(NamedTuple):
    """What one rank's first layer got: ``hidden`` [T, H], ``scores`` [T, E] and ``token_ids`` [T]."""

    hidden: Tensor
    scores: Tensor
    token_ids: Tensor


def errors(
    network: Network,
    spec: Spec,
    router: Router,
    given: Given,
    output: Tensor,
    routed: Assignments | SoftSlots,
    tokens: list[int],
) -> Errors:
    """How far the rows of ``tokens`` in ``output`` [T, H] are from the reference's."""
    try:
        choices = expected(router, given.scores, given.token_ids, routed)
    except Wrong:
        return WRONG

    def correct(quantization: str) -> Tensor:
        model, weights = network.model, network.rounded(0, quantization)
        return reference.layer(
            given.hidden, weights, choices, model.expert_activation, model.weight_on_input, tokens=tokens
        )

    quantization = spec.kernels.quantization
    own = correct(quantization)
    kernel = reference.relative_error(output[tokens], own)
    return Errors(kernel) if quantization == "none" else Errors(kernel, reference.relative_error(own, correct("none")))


def check(found: Sequence[tuple[Errors, str | None]], spec: Spec, tokens: int) -> Check:
    """The worst of all that was ``found`` over so many ``tokens``, each with the format that its kernel rounds rows to:
    the one nearest to what it may be off by, or furthest beyond."""
    allowed = [ROUNDED_ROWS_TOLERANCE if rounds else TOLERANCES[spec.kernels.dtype] for _, rounds in found]
    errors = [one for one, _ in found]
    worst = max(range(len(found)), key=lambda place: errors[place].kernel / allowed[place])
    quantized = spec.kernels.quantization != "none"
    return Check(
        rel_error=errors[worst].kernel,
        tolerance=allowed[worst],
        tokens=tokens,
        quantization_error=max(one.quantization for one in errors) if quantized else None,
    )
