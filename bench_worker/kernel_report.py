"""What the table of expert backends is asked for, and what it says; `bench_worker.kernel_table` measures it.

Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from bench_worker import capacity
from bench_worker.ceilings import Ceilings
from bench_worker.errors import DoesNotFit, SpecError
from bench_worker.kernels import rules
from bench_worker.roofline import Bound
from bench_worker.spec import Experiment, Library, Spec

__all__ = ["Asked", "Row", "Table", "as_text", "ask", "formats", "need", "spec_of", "tokens_of"]

MAX_TOKENS, MAX_SIZES = 131_072, 16


class Asked(BaseModel):
    """What a table is asked for: one MoE layer of ``model`` at each number of ``tokens``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    model: str
    tokens: list[int]
    dtype: str
    load: str
    quantization: str = "none"

    @property
    def spec(self) -> Spec:
        return spec_of(self.model, self.tokens, self.dtype, self.load, self.quantization)


class Row(BaseModel):
    """One backend at one number of tokens, for one MoE layer. Times are medians of ``samples``; null where the backend
    is not available.

    ``share``: of the floor of the experts stage, each call against ceilings measured around it; ``ratio``: experts_us
    over that of the fastest backend; ``chosen``: what ``auto`` ran; ``bus``: GB/s of the memory bus that the floor
    counts with, the median over the calls; null in tables of before it was told.
    """

    model_config = ConfigDict(extra="forbid")

    backend: str
    fusion: str | None
    tokens: int
    experts_us: float | None = None
    layer_us: float | None = None
    floor_us: float | None = None
    share: float | None = None
    bus: float | None = None
    bound: Bound | None = None
    ratio: float | None = None
    rel_error: float | None = None
    padding_waste: float | None = None
    samples: int = 0
    chosen: str | None = None
    available: bool
    reason: str | None = None


class Table(BaseModel):
    """The rows, and where they were measured.

    ``meanwhile``: the best ceilings seen between the calls, for one number format. ``ceilings``: those of a calibration
    just before, by number of CPU threads, as a result file has them; null where none was made. ``environment``: the
    machine, with ``flags`` for what else happened on it.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    dtype: str
    load: str
    quantization: str = "none"
    environment: dict[str, Any]
    ceilings: dict[str, Ceilings] | None = None
    meanwhile: Ceilings
    rows: list[Row]


def tokens_of(text: str) -> list[int]:
    """Numbers of tokens from ``1,8,64``. Raises `SpecError`."""
    counts = []
    for part in map(str.strip, text.split(",")):
        if not (part.isascii() and part.isdecimal() and 1 <= int(part) <= MAX_TOKENS):
            raise SpecError("--tokens", part, f"{part!r} is not a whole number from 1 to {MAX_TOKENS:,}")
        if int(part) in counts:
            raise SpecError("--tokens", part, f"{part} stands there more than once")
        counts.append(int(part))
    if len(counts) > MAX_SIZES:
        raise SpecError("--tokens", text, f"{len(counts)} numbers are given; at most {MAX_SIZES} are allowed")
    return counts


def formats(dtype: str, quantization: str) -> str:
    """The number format of a layer and, where it is another, of its experts, in words."""
    return dtype if quantization == "none" else f"{dtype}, experts in {quantization}"


def ask(model: str, tokens: str, dtype: str = "bfloat16", load: str = "uniform", quantization: str = "none") -> Asked:
    """Check what a member asks for; a model is one of the presets. Raises `SpecError`."""
    counts = tokens_of(tokens)
    spec = spec_of(model, counts, dtype, load, quantization, allow_paths=False)
    if reason := rules.refusal("auto", spec):
        raise SpecError("base.kernels.quantization", quantization, rules.bare(reason))
    return Asked(
        title=f"Kernels: {model}, {formats(dtype, quantization)}",
        model=model,
        tokens=counts,
        dtype=dtype,
        load=load,
        quantization=quantization,
    )


def spec_of(
    model: str,
    tokens: Sequence[int],
    dtype: str = "bfloat16",
    load: str = "uniform",
    quantization: str = "none",
    *,
    allow_paths: bool = True,
) -> Spec:
    """One MoE layer alone, as an experiment names it. Raises `SpecError` for what there isn't."""
    base = {
        "model": model,
        "kernels": {"attention": False, "dtype": dtype, "fusion": "none", "quantization": quantization},
        "load": {"profile": load},
        "workload": {"max_batch_tokens": max(tokens), "concurrency": 1},
    }
    return Experiment.model_validate({"base": base}, context=Library(allow_paths=allow_paths)).base


def need(spec: Spec, tokens: Sequence[int], available_bytes: int, *, on_gpu: bool = False) -> capacity.Fit:
    """What the layer's weights and the buffers of the largest step need. Raises `DoesNotFit` for more than there is."""
    found = capacity.fit_measurement(spec, available_bytes, tokens_per_sequence=max(tokens), on_gpu=on_gpu)
    if not found.fits:
        raise DoesNotFit(f"measuring {spec.model} at {max(tokens):,} tokens {capacity.needs(found)}")
    return found


def as_text(table: Table) -> str:
    """The table for people: one block a number of tokens."""
    ceilings = table.meanwhile
    lines = [
        f"{table.model}, one MoE layer, {formats(table.dtype, table.quantization)}, {table.load} load, "
        f"{ceilings.threads} threads",
        f"ceilings meanwhile: read {ceilings.read.value:.1f} GB/s, copy {ceilings.copy_rate.value:.1f} GB/s, "
        + ", ".join(f"{name} {rate.value:,.0f} GFLOP/s" for name, rate in ceilings.matrix.items()),
        *ceilings.warnings,
        f"{'tokens':>7}  {'backend':26}{'experts ms':>11}{'layer ms':>10}{'of floor':>9}{'bus GB/s':>10}  "
        f"{'bound by':9}{'to best':>8}{'padding':>9}{'error':>9}",
    ]
    for row in table.rows:
        if not row.available:
            lines.append(f"{row.tokens:>7}  {row.backend:26}{row.reason}")
            continue
        assert row.experts_us is not None and row.layer_us is not None  # noqa: PT018
        name = f"{row.backend} ({row.chosen + ', ' if row.chosen else ''}{row.fusion})"
        error = "not finite" if row.rel_error is None else f"{row.rel_error:.1e}"
        bus = "" if row.bus is None else f"{row.bus:.1f}"
        lines.append(
            f"{row.tokens:>7}  {name:26}{row.experts_us / 1e3:>11.3f}{row.layer_us / 1e3:>10.3f}{row.share:>9.0%}"
            f"{bus:>10}  {row.bound:9}{row.ratio:>7.2f}×{row.padding_waste:>9.0%}{error:>9}"
        )
    return "\n".join(lines)
