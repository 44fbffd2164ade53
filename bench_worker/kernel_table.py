"""The table of expert backends × tokens that ``python -m bench_worker kernels`` prints."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from bench_worker import capacity, environment, machine_state, models, roofline
from bench_worker.calibrate import Probe
from bench_worker.ceilings import INT8
from bench_worker.errors import DoesNotFit, Unavailable
from bench_worker.interleave import Reading, interleaved
from bench_worker.kernel_report import Row, Table, need
from bench_worker.kernels import registry, rules
from bench_worker.network import Network
from bench_worker.planning import network_key
from bench_worker.result import LAYER_STAGES
from bench_worker.roofline import Work
from bench_worker.scaling import top
from bench_worker.spec import Spec
from bench_worker.stages import StageClock
from bench_worker.tuning import tune
from bench_worker.variant import Variant

#: Rounds at one number of tokens, what they may take, and the inputs that rotate in them.
ROUNDS, SECONDS, INPUTS = 15, 8.0, 5
#: Steps of its own before each timed one, so long: right after the probe of the machine, whose 12 ms are of other
#: memory, a step of one token takes a tenth longer, and still some percent longer after a single step.
LEAD_IN_S = 0.02


@torch.inference_mode()
def measure(
    spec: Spec, tokens: Sequence[int], device: torch.device, tell: Callable[[int], None] = lambda done: None
) -> Table:
    """``auto`` and every backend, each at the most that it can fuse, at every number of ``tokens``. ``tell`` hears how
    many of these are done.

    Raises `DoesNotFit` where the layer's weights and the buffers of the largest step don't fit.
    """
    held = need(spec, tokens, environment.available_bytes(device), on_gpu=device.type == "cuda")
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
    in_int8 = spec.kernels.quantization == INT8
    probe = Probe(device, spec.kernels.dtype, resident_bytes=held.weights_bytes, in_int8=in_int8)
    machine, before = environment.machine(), machine_state.snapshot()
    rows: list[Row] = []
    for done, count in enumerate(tokens):
        tell(done)
        rows += _measured(variants, count, probe, errors)
        rows += [
            Row(backend=name, fusion=None, tokens=count, available=False, reason=why) for name, why in reasons.items()
        ]
    flags = machine_state.told(before, machine, own_threads=True)
    return Table(
        model=spec.model,
        dtype=spec.kernels.dtype,
        load=spec.load.profile,
        quantization=spec.kernels.quantization,
        environment=machine | {"flags": flags},
        meanwhile=probe.ceilings(torch.get_num_threads()),
        rows=rows,
    )


def _variant(spec: Spec, name: str, network: Network) -> Variant:
    """``spec`` with the backend ``name`` at the most that it can fuse. Raises `Unavailable` with the reason of the
    least, and `DoesNotFit` for what the backend needs beside the network."""
    reason = None
    for fusion in rules.FUSIONS if name == "auto" else reversed(rules.FUSIONS):
        own = rules.with_kernels(spec, experts=name, fusion=fusion)
        if (reason := registry.refusal(own, network.device)) is None:
            break
    else:
        raise Unavailable(reason)
    tokens, free = spec.workload.max_batch_tokens, environment.available_bytes(network.device)
    on_gpu = network.device.type == "cuda"
    held = capacity.fit_measurement(spec, None, tokens_per_sequence=tokens, on_gpu=on_gpu)
    all_of_it = capacity.fit_measurement(own, free, tokens_per_sequence=tokens, on_gpu=on_gpu)
    beside = all_of_it.model_copy(
        update={"total_bytes": all_of_it.total_bytes - held.weights_bytes - held.parts["process"]}
    )
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
    readings = interleaved(layers, inputs, clock, ROUNDS, SECONDS, between=probe, lead_in_s=LEAD_IN_S)
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
            bus=statistics.median(limit.bytes_per_s for limit in limits) / 1e9,
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
    stages = roofline.layer_work(model, size, tokens, counts, quantization=variant.spec.kernels.quantization)
    return sum((work for stage, work in stages.items() if top(stage) == "experts"), Work())


def _experts_us(reading: Reading) -> float:
    return sum(us for stage, us in reading.times_us.items() if top(stage) == "experts")


def _layer_us(reading: Reading) -> float:
    return sum(us for stage, us in reading.times_us.items() if top(stage) in LAYER_STAGES)
