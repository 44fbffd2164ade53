"""The kernels that oneDNN compiles and keeps on the CPU: one for each shape of a bfloat16 product that it meets. Pure.

They are kept since making one takes longer than running it (see `bench_worker.allocators`), and they are large: a
thousand different row counts take more memory than the activations. Shape: ``E`` experts.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, pi, sqrt

import numpy as np

from bench_worker import strategies
from bench_worker.models import Model
from bench_worker.spec import Spec
from bench_worker.workload.plackett_luce import inclusion

__all__ = ["different_row_counts", "kept_kernels_bytes"]

#: One kernel with what oneDNN keeps beside it, measured over 3,000 shapes (torch 2.13, AVX-512): 0.7 MB, of any shape.
KERNEL_BYTES = 700_000
#: Tokens in a page of the KV cache, by which a decoding request's products grow.
PAGE = 16
#: Standard deviations around its mean within which an expert's rows are looked for.
REACH = 6
#: Backends that compute expert by expert, so with as many rows as each has; quantized ones not by oneDNN.
BY_EXPERT = ("deepspeed", "loop", "auto")
#: Strategies that give every expert as many rows: one number for each number of tokens in a step.
EVEN = ("expert_choice", "balanced", "soft")


def kept_kernels_bytes(spec: Spec, model: Model, tokens: int, *, steps: int, tokens_per_sequence: int) -> int:
    """Bytes of the kernels of a measurement whose fullest step has ``tokens``, ``steps`` of which are as full.

    Two products for each row count that an expert meets; those of gate, attention, shared and dense FFN and head for
    each number of tokens in a step, which while decoding runs up to the requests in flight; and two in attention for
    each number of pages in a decoding request's cache. Other dtypes keep none.
    """
    if spec.kernels.dtype != "bfloat16":
        return 0
    work = spec.workload
    sizes = min(work.concurrency, work.requests) + 2  # of steps: while decoding, a full one, and one that is left over
    if spec.kernels.experts not in BY_EXPERT or spec.kernels.quantization != "none":
        by_rows = 0.0
    elif spec.routing.strategy in EVEN:
        by_rows = 2.0 * sizes
    else:
        by_rows = 2 * _by_rows(spec, model, tokens, steps * spec.layers)
    linears = 1 + (2 if model.shared_intermediate else 0)
    pages = 0
    if spec.kernels.attention:
        linears += 3 + (2 if model.dense_layers else 0)
        fixed = work.prompt_tokens is not None and work.output_tokens is not None
        pages = ceil((work.output_tokens or 0 if fixed else tokens_per_sequence) / PAGE) + 1
    return int(KERNEL_BYTES * (by_rows + linears * sizes + 2 * pages))


def different_row_counts(chances: np.ndarray, tokens: int, draws: int) -> float:
    """How many different numbers of rows above 0 some expert is expected to get in ``draws`` steps of ``tokens``, where
    a token goes to expert e with ``chances`` [E]: Σ over numbers of 1 − Π over experts of (1 − p)^draws, with p from
    the normal distribution near the binomial one, within `REACH` deviations."""
    log_never = np.zeros(tokens + 1)
    for chance in chances.tolist():
        mean = tokens * chance
        deviation = max(0.3, sqrt(mean * (1 - chance)))
        first, last = max(1, floor(mean - REACH * deviation)), min(tokens, ceil(mean + REACH * deviation))
        rows = np.arange(first, last + 1)
        p = np.exp(-0.5 * ((rows - mean) / deviation) ** 2) / (deviation * sqrt(2 * pi))
        log_never[first : last + 1] += draws * np.log1p(-p.clip(max=0.999))
    return float((1 - np.exp(log_never)).sum())


def _by_rows(spec: Spec, model: Model, tokens: int, draws: int) -> float:
    """Different row counts of an uneven load. A recorded one counts as zipf of skew 1."""
    params = strategies.parameters(spec.routing, model)
    rows = strategies.routed_rows(spec.routing.strategy, params, 1000, model.experts) / 1000
    even = spec.load.profile == "uniform" or spec.routing.strategy == "hash"
    skew = 0.0 if even else 1.0 if spec.load.profile == "recorded" else spec.load.skew
    return _different_row_counts(model.experts, min(rows, model.experts), skew, tokens, draws)


@lru_cache(maxsize=1024)  # a form asks for the same ones again and again
def _different_row_counts(experts: int, rows: float, skew: float, tokens: int, draws: int) -> float:
    if skew == 0 or round(rows) >= experts:
        return different_row_counts(np.full(experts, rows / experts), tokens, draws)
    weights = np.arange(1, experts + 1) ** -skew
    return different_row_counts(inclusion(weights, max(1, round(rows))), tokens, draws)
