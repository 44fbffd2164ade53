"""Devices by name, and how many of one a deployment needs. Pure; torch-free."""

from __future__ import annotations

from typing import NamedTuple

from bench_worker import capacity, models
from bench_worker.errors import not_one_of
from bench_worker.spec import Layout, Spec

__all__ = ["DEVICES", "Device", "Enough", "enough", "named"]

#: More of one device are not looked for.
MOST = 1024


class Device(NamedTuple):
    """A device that models are served on. ``memory_bytes``: of 10⁹ bytes a GB, as its maker states it; what the driver
    keeps for itself is not taken off."""

    name: str
    memory_bytes: int
    source: str


DEVICES = {
    device.name: device
    for device in (
        Device("H100", 80 * 10**9, "NVIDIA H100 Tensor Core GPU datasheet, SXM: 80 GB"),
        Device("H200", 141 * 10**9, "NVIDIA H200 Tensor Core GPU datasheet: 141 GB"),
        Device("B200", 180 * 10**9, "NVIDIA DGX B200 datasheet: 1,440 GB for 8"),
        Device("MI300X", 192 * 10**9, "AMD Instinct MI300X datasheet: 192 GB"),
        Device("A100", 80 * 10**9, "NVIDIA A100 Tensor Core GPU datasheet, 80 GB version"),
        Device("L40S", 48 * 10**9, "NVIDIA L40S datasheet: 48 GB"),
    )
}


def named(name: str) -> Device:
    """The device called ``name``, in whatever case. Raises ``ValueError`` with one sentence."""
    try:
        return DEVICES[name.upper()]
    except KeyError:
        raise ValueError(not_one_of(name, DEVICES)) from None


class Enough(NamedTuple):
    """The least number of devices on which a deployment fits, in the layout that needs least of each."""

    devices: int
    layout: Layout
    fit: capacity.Fit


def enough(spec: Spec, device_bytes: int, *, tokens_per_sequence: int | None = None) -> Enough | None:
    """The least number of devices of ``device_bytes`` that the deployment of ``spec`` fits on, by memory alone, over
    all layouts of that number whose TP divides the attention heads. None where `MOST` are too few."""
    heads = models.load(spec.model, allow_paths=True).attention.heads
    # Every byte of the weights is on one device at least, so fewer can't hold them.
    weights_bytes = capacity.fit(_laid_out(spec, Layout()), None).weights_bytes
    for count in range(max(1, -(-weights_bytes // device_bytes)), MOST + 1):
        layouts = [Layout(tp=tp, dp=count // tp) for tp in range(1, count + 1) if count % tp == 0 and heads % tp == 0]
        fits = [
            (capacity.fit(_laid_out(spec, layout), device_bytes, tokens_per_sequence=tokens_per_sequence), layout)
            for layout in layouts
        ]
        best, layout = min(fits, key=lambda one: one[0].total_bytes)
        if best.fits:
            return Enough(count, layout, best)
    return None


def _laid_out(spec: Spec, layout: Layout) -> Spec:
    return spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"layout": layout})})
