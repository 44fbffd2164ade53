"""The kernels that oneDNN compiles and keeps on the CPU: one for each shape of a bfloat16 product that it meets. Pure.

They are kept since making one takes longer than running it (see `bench_worker.allocators`), and they are large: a
thousand different row counts take more memory than the activations. Shapes: ``E`` experts, ``V`` row counts.
"""

from __future__ import annotations

from math import ceil

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
#: Backends that compute expert by expert, so with as many rows as each has.
BY_EXPERT = ("deepspeed", "loop", "auto")
#: Strategies that give every expert as many rows: one number for each number of tokens in a step.
EVEN = ("expert_choice", "balanced", "soft")


def kept_kernels_bytes(spec: Spec, model: Model, tokens: int, *, steps: int, tokens_per_sequence: int) -> int:
    """Bytes of the kernels of a measurement whose fullest step has ``tokens``, ``steps`` of which are as full.

    Two products for each row count that an expert meets; those of gate, attention, shared and dense FFN and head for
    each number of tokens in a step, which while decoding runs up to the concurrency; and two in attention for each
    number of pages in a decoding request's cache. Other dtypes keep none.
    """
    if spec.kernels.dtype != "bfloat16":
        return 0
    work = spec.workload
    if spec.kernels.experts not in BY_EXPERT:
        by_rows = 0.0
    elif spec.routing.strategy in EVEN:
        by_rows = 2.0 * (work.concurrency + 2)
    else:
        by_rows = 2 * different_row_counts(_chances(spec, model), tokens, steps * spec.layers)
    linears = 1 + (2 if model.shared_intermediate else 0)
    pages = 0
    if spec.kernels.attention:
        linears += 3 + (2 if model.dense_layers else 0)
        fixed = work.prompt_tokens is not None and work.output_tokens is not None
        pages = ceil((work.output_tokens or 0 if fixed else tokens_per_sequence) / PAGE) + 1
    return int(KERNEL_BYTES * (by_rows + linears * (work.concurrency + 2) + 2 * pages))


def different_row_counts(chances: np.ndarray, tokens: int, draws: int) -> float:
    """How many different numbers of rows above 0 some expert is expected to get in ``draws`` steps of ``tokens``, where
    a token goes to expert e with ``chances`` [E]: Σ over numbers of 1 − Π over experts of (1 − p)^draws, with p from
    the normal distribution near the binomial one."""
    mean = tokens * chances
    deviation = np.sqrt(mean * (1 - chances)).clip(min=0.3)
    rows = np.arange(1, tokens + 1)[:, None]
    chance = np.exp(-0.5 * ((rows - mean) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
    never = draws * np.log1p(-chance.clip(max=0.999)).sum(axis=1)
    return float((1 - np.exp(never)).sum())


def _chances(spec: Spec, model: Model) -> np.ndarray:
    """How likely a token goes to each expert [E]. A recorded load counts as zipf of skew 1."""
    experts = model.experts
    params = strategies.parameters(spec.routing, model)
    rows = strategies.routed_rows(spec.routing.strategy, params, 1000, experts) / 1000
    if spec.load.profile == "uniform" or spec.routing.strategy == "hash":
        return np.full(experts, min(1.0, rows / experts))
    skew = 1.0 if spec.load.profile == "recorded" else spec.load.skew
    weights = np.arange(1, experts + 1) ** -skew
    return inclusion(weights, min(round(rows), experts - 1)) if experts > 1 else np.ones(1)
