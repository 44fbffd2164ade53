"""What ``fit`` answers: does the deployment fit its devices, and does the measurement fit this machine. Torch-free."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, get_args

from bench_worker import capacity, models
from bench_worker.devices import Device, enough
from bench_worker.planning import Condition
from bench_worker.result import FitKind
from bench_worker.spec import PlannedRun

__all__ = ["as_text", "document"]


def document(
    conditions: list[Condition], available: int, device: Device | None, refused: str | None, *, on_gpu: bool = False
) -> dict[str, Any]:
    """What ``fit --json`` prints: ``deployment`` and ``measurement`` of the run that needs most, then of all ``runs``.

    The measurement is held against ``available`` bytes, a GPU's where it is ``on_gpu``; the deployment against those of
    ``device`` or, without one, against the same. ``refused`` is what ``run`` would say; ``warnings`` hold for the
    experiment as a whole.
    """
    device_bytes = available if device is None else device.memory_bytes
    runs = [_answer(run, at, available, device_bytes, on_gpu) for at in conditions for run in at.planned]
    warnings = [
        warning
        for at in conditions
        for run in at.planned
        if (warning := capacity.beyond_context(models.load(run.spec.model, allow_paths=True), at.longest))
    ]
    most = {kind: max((run[kind] for run in runs), key=itemgetter("total_bytes")) for kind in get_args(FitKind)}
    return {
        **most,
        "device": {"name": "this machine", "memory_bytes": available} if device is None else device._asdict(),
        "available_bytes": available,
        "refused": refused,
        "warnings": list(dict.fromkeys(warnings)),
        "runs": runs,
    }


def _answer(run: PlannedRun, at: Condition, available: int, device_bytes: int, on_gpu: bool) -> dict[str, Any]:
    """``least``: how many of the device the deployment needs; None where no number of them is enough."""
    deployed = capacity.fit(run.spec, device_bytes, tokens_per_sequence=at.longest)
    least = enough(run.spec, device_bytes, tokens_per_sequence=at.longest)
    return {
        "variant": run.variant,
        "condition": run.condition,
        "deployment": deployed.model_dump(),
        "measurement": at.fit(run.spec, available, on_gpu=on_gpu).model_dump(),
        "longest_context": capacity.longest_context(run.spec, device_bytes),
        "least": None
        if least is None
        else {"devices": least.devices, "layout": least.layout.model_dump(), "total_bytes": least.fit.total_bytes},
    }


def as_text(found: dict[str, Any]) -> str:
    """The same for a reader: three lines a run, then what holds for all."""
    device, lines = found["device"], []
    for run in found["runs"]:
        deployed, measured = run["deployment"], run["measurement"]
        formats = deployed["formats"]
        dtype = formats["kv_cache"]
        parts = ", ".join(
            f"{part.replace('_', ' ')} {_size(count)}{'' if formats[part] == dtype else f' ({formats[part]})'}"
            for part, count in deployed["parts"].items()
            if count
        )
        lines += [
            f"{run['variant']} at {run['condition']}: deployed {_gb(deployed['total_bytes'])} a device (weights "
            f"{_gb(deployed['weights_bytes'])}, KV cache {_gb(deployed['kv_bytes'])}); measured here "
            f"{_gb(measured['total_bytes'])} of {_gb(found['available_bytes'])}",
            f"  {dtype}: {parts}",
            f"  {device['name']} ({_gb(device['memory_bytes'])}): {_verdict(run)}",
        ]
    lines += [f"Warning: {warning}" for warning in found["warnings"]]
    if found["refused"] is not None:
        lines.append(f"It can't be measured here: {found['refused']}.")
    return "\n".join(lines)


def _verdict(run: dict[str, Any]) -> str:
    deployed, least = run["deployment"], run["least"]
    if deployed["fits"]:
        return (
            f"fits; at most {deployed['max_concurrency']:,} requests of {deployed['tokens_per_sequence']:,} tokens at "
            f"once, or {run['longest_context']:,} tokens each at this concurrency"
        )
    if least is None:
        return "does not fit, on any number of these"
    layout = least["layout"]
    return (
        f"does not fit; needs at least {least['devices']} of these (TP {layout['tp']} × DP {layout['dp']}, "
        f"{_gb(least['total_bytes'])} each), by memory alone"
    )


def _size(count: int) -> str:
    return _gb(count) if count >= 50_000_000 else f"{count / 1e6:,.1f} MB"


def _gb(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
