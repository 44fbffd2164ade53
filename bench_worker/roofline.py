"""What each stage of a step has to compute and to move, and how fast that could be at best. Pure; torch-free.

``T`` tokens of the step, ``N`` rows that experts compute, ``A`` distinct experts with rows, ``E`` experts, ``H``
hidden, ``I`` expert intermediate, ``b`` bytes an element. FLOPs count a multiply-add as two.

The floor of a stage is ``max(FLOPs / matrix rate, bytes / bandwidth)`` (the roofline of Williams, Waterman and
Patterson, CACM 2009). Bytes are those that have to cross the memory bus: weights, and of rows and KV cache what
exceeds the last-level cache, since a stage may find there what the one before it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import Literal

import numpy as np

from bench_worker.capacity import DTYPE_BYTES, stored_bytes
from bench_worker.models import GQA, Model
from bench_worker.spec import Spec
from bench_worker.workload.schedule import Batch

__all__ = ["Bound", "Limits", "Work", "around_work", "bound", "expert_work", "floor_us", "layer_work", "step_work"]

Bound = Literal["memory", "compute", "overhead"]

#: A stage that takes more than twice its floor is held up by neither the memory bus nor the arithmetic.
OVERHEAD_SHARE = 0.5

#: Weights this many times the size of the cache are read from memory in every step.
CACHE_TIMES = 4


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of a stage. ``weight_bytes`` are read once a step; ``row_bytes`` are activations, indices and KV
    cache, each counted where it is read and where it is written. ``int8_flops``: those of ``flops`` that int8 weights
    allow to do in int8. ``reread_bytes``: weights that something else has just read, so they may lie in the cache as
    rows do."""

    flops: float = 0.0
    weight_bytes: float = 0.0
    row_bytes: float = 0.0
    int8_flops: float = 0.0
    reread_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.row_bytes + other.row_bytes,
            self.int8_flops + other.int8_flops,
            self.reread_bytes + other.reread_bytes,
        )


@dataclass(frozen=True)
class Limits:
    """What the device can do at best: measured ceilings, and the size of its last-level cache.

    ``resident_bytes``: all weights that a step touches. Where they are so few that they may stay in the cache from step
    to step, none is counted. ``int8_per_s``: the rate in int8, which counts where it is known and the higher one.
    """

    bytes_per_s: float
    flops_per_s: float
    cache_bytes: int = 0
    resident_bytes: float = inf
    int8_per_s: float | None = None

    def moved_bytes(self, work: Work) -> float:
        """Bytes of ``work`` that have to cross the memory bus."""
        if self.resident_bytes <= CACHE_TIMES * self.cache_bytes:
            return max(0.0, work.row_bytes - self.cache_bytes)
        return work.weight_bytes + max(0.0, work.row_bytes + work.reread_bytes - self.cache_bytes)

    def memory_us(self, work: Work) -> float:
        """Time to move what ``work`` has to move."""
        return self.moved_bytes(work) / self.bytes_per_s * 1e6

    def compute_us(self, work: Work) -> float:
        in_int8 = work.int8_flops / max(self.int8_per_s or 0.0, self.flops_per_s)  # or widened
        return ((work.flops - work.int8_flops) / self.flops_per_s + in_int8) * 1e6


def floor_us(work: Work, limits: Limits) -> float:
    """The least time in µs that ``work`` can take."""
    return max(limits.memory_us(work), limits.compute_us(work))


def bound(by_memory_us: float, by_compute_us: float, time_us: float) -> Bound:
    """What holds up a stage that took ``time_us``, given how much of its floor bandwidth sets and how much arithmetic:
    the larger of the two, or neither (see `OVERHEAD_SHARE`)."""
    if by_memory_us + by_compute_us < OVERHEAD_SHARE * time_us:
        return "overhead"
    return "memory" if by_memory_us >= by_compute_us else "compute"


def expert_work(
    hidden: int, intermediate: int, size: int, rows: Sequence[int] | np.ndarray, quantization: str = "none"
) -> Work:
    """2·N·3·H·I FLOPs, A·3·H·I·b of weights, or as they are stored with ``quantization``, and N·(2H + 3I)·b of rows;
    ``rows`` [E] belong to each expert."""
    total, active = int(np.sum(rows)), int(np.count_nonzero(rows))
    flops = 2 * total * 3 * hidden * intermediate
    return Work(
        flops,
        active * stored_bytes(hidden, intermediate, size, quantization),
        total * (2 * hidden + 3 * intermediate) * size,
        int8_flops=flops if quantization == "int8" else 0,
    )


def layer_work(
    model: Model,
    size: int,
    tokens: int,
    rows: Sequence[int] | np.ndarray,
    mixing: bool = False,
    quantization: str = "none",
) -> dict[str, Work]:
    """Each stage of one MoE layer. ``mixing``: rows are mixtures of all tokens (soft routing), so that ``permute`` and
    ``combine`` are matrix products. ``quantization``: that of the routed experts."""
    hidden, total = model.hidden, int(np.sum(rows))
    moved = (tokens + total) * hidden * size
    mixed = 2.0 * tokens * total * hidden if mixing else 0.0
    work = {
        "route.gate": _product(tokens, hidden, model.experts, size),
        "route.select": Work(row_bytes=4 * tokens * model.experts + 20 * total),  # scores; expert, token, weight
        "permute": Work(mixed, row_bytes=moved),
        "combine": Work(mixed, row_bytes=moved),
    }
    routed = expert_work(hidden, model.expert_intermediate, size, rows, quantization)
    if not model.shared_intermediate:
        return work | {"experts": routed}
    return work | {
        "experts.routed": routed,
        "experts.shared": expert_work(hidden, model.shared_intermediate, size, [tokens]),
    }


def step_work(spec: Spec, model: Model, batch: Batch, rows: Iterable[Sequence[int]]) -> dict[str, Work]:
    """Each stage of a step, summed over the executed layers; ``rows`` [layers, E] as in `expert_work`."""
    size, tokens = DTYPE_BYTES[spec.kernels.dtype], batch.tokens
    mixing, quantization = spec.routing.strategy == "soft", spec.kernels.quantization
    work: dict[str, Work] = {}
    for own in rows:
        for stage, part in layer_work(model, size, tokens, own, mixing, quantization).items():
            work[stage] = work.get(stage, Work()) + part
    return work | around_work(spec, model, batch) if spec.kernels.attention else work


def around_work(spec: Spec, model: Model, batch: Batch, tp: int = 1) -> dict[str, Work]:
    """Each stage around the MoE layers of a step, attention summed over the executed ones, on one of ``tp`` ranks that
    compute ``batch`` together: each with its share of the heads, the dense FFN and the vocabulary, and with all rows.

    Of the embedding, a rank reads the rows of one in ``tp`` tokens in the mean, and writes one for each: zeros for the
    others.
    """
    size, tokens = DTYPE_BYTES[spec.kernels.dtype], batch.tokens
    work: dict[str, Work] = {}
    kinds = model.attention_layers
    for kind in kinds:
        stage = "attention" if len(kinds) == 1 else f"attention.{kind}"
        work[stage] = sum([_attention(model, kind, size, batch, tp)] * spec.layers, Work())
    work["other.embedding"] = Work(row_bytes=(1 + 1 / tp) * tokens * model.hidden * size)
    if model.dense_layers:
        work["other.dense_ffn"] = expert_work(model.hidden, ceil(model.dense_intermediate / tp), size, [tokens])
    work["other.head"] = _product(int(np.count_nonzero(batch.yields)), model.hidden, ceil(model.vocab / tp), size)
    return work


def _product(rows: int, inner: int, outer: int, size: int) -> Work:
    """Rows [rows, inner] times weights [outer, inner], which nobody reads where there are no rows."""
    if not rows:
        return Work()
    return Work(2 * prod((rows, inner, outer)), inner * outer * size, rows * (inner + outer) * size)


def _attention(model: Model, kind: str, size: int, batch: Batch, tp: int) -> Work:
    """One layer on one of ``tp`` ranks: its projections, and each row's scores and mix over the tokens that it sees.

    ``pairs`` of a query and a token that it sees cost 4 · heads · head size FLOPs (a score and a mix). MLA: one new row
    works in the latent space; a chunk expands keys and values first.
    """
    a, tokens = model.attention, batch.tokens
    if not tokens:
        return Work()
    heads, parameters = a.heads // tp, model.attention_parameters(kind, tp)
    length = batch.table[:, 1] + batch.table[:, 2]
    context = batch.table[:, 3]
    window = model.window if kind == "sliding" else None
    pairs = _pairs(length, context, window)
    seen = context + length if window is None else np.minimum(context + length, window + length)
    if isinstance(a, GQA):
        flops = 4.0 * heads * a.head_dim * pairs.sum()
    else:
        single = length == 1
        absorbed = 2.0 * heads * (2 * a.kv_lora + a.rope) * pairs[single].sum()
        expanded = 2.0 * heads * (a.nope + a.rope + a.v_dim) * pairs[~single].sum()
        expansion = 2.0 * heads * a.kv_lora * (a.nope + a.v_dim) * seen[~single].sum()
        flops = absorbed + expanded + expansion
    cache = float((seen + length).sum()) * a.kv_values(tp) * size
    return Work(2.0 * tokens * parameters + flops, parameters * size, cache + 4.0 * tokens * model.hidden * size)


def _pairs(length: np.ndarray, context: np.ndarray, window: int | None) -> np.ndarray:
    """Σ over the ``length`` new rows of each request of the tokens that the row sees: its context, and itself."""
    if window is None:
        return length * context + length * (length + 1) // 2
    below = np.clip(window - context, 0, length)  # new rows that see fewer than a window of tokens
    return below * context + below * (below + 1) // 2 + (length - below) * window
