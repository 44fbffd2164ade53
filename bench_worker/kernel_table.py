"""The table of expert backends × tokens that ``python -m bench_worker kernels`` prints."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from bench_worker import capacity, environment, models, roofline
from bench_worker.calibrate import Probe
from bench_worker.ceilings import Ceilings
from bench_worker.errors import DoesNotFit, SpecError, Unavailable
from bench_worker.interleave import Reading, interleaved
from bench_worker.kernels import registry
from bench_worker.network import Network
from bench_worker.planning import network_key
from bench_worker.recording import top
from bench_worker.result import LAYER_STAGES
from bench_worker.roofline import Bound, Work
from bench_worker.spec import Experiment, Library, Spec
from bench_worker.stages import StageClock
from bench_worker.tuning import tune
from bench_worker.variant import Variant

#: Rounds at one number of tokens, what they may take, and the inputs that rotate in them.
ROUNDS, SECONDS, INPUTS = 15, 8.0, 5
MAX_TOKENS = 131_072


class Row(BaseModel):
    """One backend at one number of tokens, for one MoE layer. Times are medians of ``samples``; null where the backend
    is not available.

    ``share``: of the floor of the experts stage, each call against ceilings measured around it; ``ratio``: experts_us
    over that of the fastest backend; ``chosen``: what ``auto`` ran.
    """

    model_config = ConfigDict(extra="forbid")

    backend: str
    fusion: str | None
    tokens: int
    experts_us: float | None = None
    layer_us: float | None = None
    floor_us: float | None = None
    share: float | None = None
    bound: Bound | None = None
    ratio: float | None = None
    rel_error: float | None = None
    padding_waste: float | None = None
    samples: int = 0
    chosen: str | None = None
    available: bool
    reason: str | None = None


class Table(BaseModel):
    """The rows, and the best ceilings seen between their calls."""

    model_config = ConfigDict(extra="forbid")

    model: str
    dtype: str
    load: str
    ceilings: Ceilings
    rows: list[Row]


def tokens_of(text: str) -> list[int]:
    """Numbers of tokens from ``1,8,64``. Raises `SpecError`."""
    counts = []
    for part in map(str.strip, text.split(",")):
        if not (part.isascii() and part.isdecimal() and 1 <= int(part) <= MAX_TOKENS):
            raise SpecError("--tokens", part, f"{part!r} is not a whole number from 1 to {MAX_TOKENS:,}")
        counts.append(int(part))
    return counts


def spec_of(model: str, tokens: Sequence[int], dtype: str = "bfloat16", load: str = "uniform") -> Spec:
    """One MoE layer alone, as an experiment names it. Raises `SpecError` for what there isn't."""
    base = {
        "model": model,
        "kernels": {"attention": False, "dtype": dtype, "fusion": "none"},
        "load": {"profile": load},
        "workload": {"max_batch_tokens": max(tokens), "concurrency": 1},
    }
    return Experiment.model_validate({"base": base}, context=Library(allow_paths=True)).base


@torch.inference_mode()
def measure(spec: Spec, tokens: Sequence[int], device: torch.device) -> Table:
    """``auto`` and every backend, each at the most that it can fuse, at every number of ``tokens``.

    Raises `DoesNotFit` where the layer's weights and the buffers of the largest step don't fit.
    """
    need = capacity.fit_measurement(spec, environment.available_bytes(device), tokens_per_sequence=max(tokens))
    if not need.fits:
        raise DoesNotFit(f"measuring {spec.model} at {max(tokens):,} tokens {capacity.needs(need)}")
    network = Network(models.load(spec.model, allow_paths=True), network_key(spec), device)
    variants: dict[str, Variant] = {}
    reasons: dict[str, str] = {}
    for name in ("auto", *registry.NAMES):
        try:
            variants[name] = _variant(spec, name, network)
            variants[name].warm()
        except (Unavailable, DoesNotFit) as error:
            reasons[name] = str(error)
    errors = {name: variant.check().rel_error for name, variant in variants.items()}
    if "auto" in variants:
        tune(variants["auto"], tokens)
    probe = Probe(device, spec.kernels.dtype, resident_bytes=need.weights_bytes)
    rows: list[Row] = []
    for count in tokens:
        rows += _measured(variants, count, probe, errors)
        rows += [
            Row(backend=name, fusion=None, tokens=count, available=False, reason=why) for name, why in reasons.items()
        ]
    return Table(
        model=spec.model,
        dtype=spec.kernels.dtype,
        load=spec.load.profile,
        ceilings=probe.ceilings(torch.get_num_threads()),
        rows=rows,
    )


def _variant(spec: Spec, name: str, network: Network) -> Variant:
    """``spec`` with the backend ``name`` at the most that it can fuse. Raises `Unavailable` with the reason of the
    least, and `DoesNotFit` for what the backend needs beside the network."""
    reason = None
    for fusion in registry.FUSIONS if name == "auto" else reversed(registry.FUSIONS):
        own = registry.with_kernels(spec, experts=name, fusion=fusion)
        if (reason := registry.refusal(own, network.device)) is None:
            break
    else:
        raise Unavailable(reason)
    tokens, free = spec.workload.max_batch_tokens, environment.available_bytes(network.device)
    held = capacity.fit_measurement(spec, None, tokens_per_sequence=tokens)
    need = capacity.fit_measurement(own, free, tokens_per_sequence=tokens)
    beside = need.model_copy(update={"total_bytes": need.total_bytes - held.weights_bytes - held.parts["process"]})
    if beside.total_bytes > free:
        raise DoesNotFit(f"beside the weights it {capacity.needs(beside)}")
    return Variant(own, network)


def _measured(
    variants: dict[str, Variant], tokens: int, probe: Probe, errors: dict[str, float | None]
) -> Iterator[Row]:
    """The rows of the available backends at one number of tokens."""
    if not variants:
        return
    any_variant = next(iter(variants.values()))
    inputs = [any_variant.sample(tokens, seed) for seed in range(INPUTS)]
    counts = [any_variant.counts(given) for given in inputs]
    first = probe.calls
    layers = {name: variant.layers[0] for name, variant in variants.items()}
    clock = StageClock(any_variant.network.device)
    readings = interleaved(layers, inputs, clock, ROUNDS, SECONDS, between=probe)
    works = [_experts_work(any_variant, tokens, own) for own in counts]
    by_name: dict[str, list[tuple[int, Reading]]] = {name: [] for name in variants}
    for place, reading in enumerate(readings):
        by_name[reading.name].append((first + place, reading))
    fastest = min(statistics.median(_experts_us(r) for _, r in own) for own in by_name.values())
    for name, variant in variants.items():
        own = by_name[name]
        experts_us = statistics.median(_experts_us(reading) for _, reading in own)
        limits = [probe.limits(call) for call, _ in own]
        floors = [
            roofline.floor_us(works[reading.item], limit) for (_, reading), limit in zip(own, limits, strict=True)
        ]
        shares = [floor / _experts_us(reading) for floor, (_, reading) in zip(floors, own, strict=True)]
        share = statistics.median(shares)
        by_memory = limits[0].memory_us(works[0]) >= limits[0].compute_us(works[0])
        real = sum(int(own.sum()) for own in counts)
        chosen = variant.chosen(tokens)
        yield Row(
            backend=name,
            fusion=variant.fusions[chosen or name],
            tokens=tokens,
            experts_us=experts_us,
            layer_us=statistics.median(_layer_us(reading) for _, reading in own),
            floor_us=statistics.median(floors),
            share=share,
            bound=roofline.bound(share if by_memory else 0.0, 0.0 if by_memory else share, 1.0),
            ratio=experts_us / fastest,
            rel_error=errors[name],
            padding_waste=1 - real / sum(layers[name].computed_rows(one, tokens) for one in counts),
            samples=len(own),
            chosen=chosen,
            available=True,
        )


def _experts_work(variant: Variant, tokens: int, counts: np.ndarray) -> Work:
    model, size = variant.network.model, variant.network.dtype.itemsize
    stages = roofline.layer_work(model, size, tokens, counts)
    return sum((work for stage, work in stages.items() if top(stage) == "experts"), Work())


def _experts_us(reading: Reading) -> float:
    return sum(us for stage, us in reading.times_us.items() if top(stage) == "experts")


def _layer_us(reading: Reading) -> float:
    return sum(us for stage, us in reading.times_us.items() if top(stage) in LAYER_STAGES)


def as_text(table: Table) -> str:
    """The table for people: one block a number of tokens."""
    ceilings = table.ceilings
    lines = [
        f"{table.model}, one MoE layer, {table.dtype}, {table.load} load, {ceilings.threads} threads",
        f"ceilings meanwhile: read {ceilings.read.value:.1f} GB/s, copy {ceilings.copy_rate.value:.1f} GB/s, "
        f"{table.dtype} {ceilings.matrix[table.dtype].value:,.0f} GFLOP/s",
        *ceilings.warnings,
        f"{'tokens':>7}  {'backend':26}{'experts ms':>11}{'layer ms':>10}{'of floor':>9}  {'bound by':9}{'to best':>8}"
        f"{'padding':>9}{'error':>9}",
    ]
    for row in table.rows:
        if not row.available:
            lines.append(f"{row.tokens:>7}  {row.backend:26}{row.reason}")
            continue
        assert row.experts_us is not None and row.layer_us is not None  # noqa: PT018
        name = f"{row.backend} ({row.chosen + ', ' if row.chosen else ''}{row.fusion})"
        error = "not finite" if row.rel_error is None else f"{row.rel_error:.1e}"
        lines.append(
            f"{row.tokens:>7}  {name:26}{row.experts_us / 1e3:>11.3f}{row.layer_us / 1e3:>10.3f}{row.share:>9.0%}  "
            f"{row.bound:9}{row.ratio:>7.2f}×{row.padding_waste:>9.0%}{error:>9}"
        )
    return "\n".join(lines)
