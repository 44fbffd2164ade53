"""What a device can do at best, as `bench_worker.calibrate` measured it, and the file that keeps it. Torch-free."""

from __future__ import annotations

import os
from datetime import datetime
from math import inf
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from bench_worker.roofline import Limits

__all__ = ["INT8", "Ceiling", "Ceilings", "as_text", "cache_folder", "keep", "load"]

#: The number format of quantized products, of int8 rows and weights.
INT8 = "int8"
#: A probe that finds more than this times a ceiling shows that it was measured too low.
HIGHER = 1.05


class Ceiling(BaseModel):
    """The best rate that any kernel reached, in ``unit``; ``median`` and ``lowest`` are the same kernel's.

    ``by_kernel``: the best of each that was tried. ``modes``: the two rates that the kernel's repeats fall into, the
    lower one first, where they do: other users of the machine come and go. Ceilings of before they were recorded have
    neither.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    unit: str
    kernel: str
    median: float
    lowest: float
    samples: int
    by_kernel: dict[str, float] = {}
    modes: tuple[float, float] | None = None

    @property
    def spread(self) -> float:
        """How far the median lies below the best: 0 is a machine that always gives the same."""
        return 1 - self.median / self.value


class Ceilings(BaseModel):
    """Ceilings of one device with ``threads`` CPU threads. ``copy_rate`` counts each byte twice: read and written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str
    threads: int
    read: Ceiling
    copy_rate: Ceiling
    #: By number format; int8 where a CPU was measured by a version that quantizes.
    matrix: dict[str, Ceiling]
    cache_bytes: int
    measured_at: datetime
    seconds: float
    #: What may have lowered them, one sentence each.
    warnings: list[str]

    @property
    def bus(self) -> Ceiling:
        """The better of the two bandwidths, since a stage may read, write or both."""
        return max(self.read, self.copy_rate, key=lambda ceiling: ceiling.value)

    def limits(self, dtype: str, resident_bytes: float = inf) -> Limits:
        """For work in ``dtype``."""
        int8 = self.matrix.get(INT8)
        return Limits(
            self.bus.value * 1e9,
            self.matrix[dtype].value * 1e9,
            self.cache_bytes,
            resident_bytes,
            None if int8 is None else int8.value * 1e9,
        )

    def raised(self, bandwidth: float, at: datetime) -> Ceilings:
        """With a memory bus that gave ``bandwidth`` GB/s since; unchanged where that is no more than `HIGHER`."""
        bus = self.bus
        if bandwidth <= HIGHER * bus.value:
            return self
        name = "read" if bus is self.read else "copy_rate"
        return self.model_copy(update={name: bus.model_copy(update={"value": bandwidth}), "measured_at": at})


def cache_folder() -> Path:
    """``MOESCOPE_CACHE``, else ``moescope`` in the user's cache folder (XDG base directories)."""
    if folder := os.environ.get("MOESCOPE_CACHE"):
        return Path(folder)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "moescope"


def load(fingerprint: str, threads: int) -> Ceilings | None:
    """The kept ceilings of a machine; None where there are none that this version can read."""
    try:
        return Ceilings.model_validate_json(_file(fingerprint, threads).read_bytes())
    except (OSError, ValidationError):
        return None


def keep(fingerprint: str, ceilings: Ceilings) -> Path | None:
    """Write ``ceilings`` over those of the same machine and thread count; None where the folder can't be written to. A
    reader never sees half a file."""
    path = _file(fingerprint, ceilings.threads)
    partial = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(ceilings.model_dump_json(indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError:
        return None
    return path


def as_text(ceilings: Ceilings) -> str:
    """One line a ceiling, then what may have lowered them."""
    rows = {"read": ceilings.read, "copy": ceilings.copy_rate, **ceilings.matrix}
    lines = [
        f"{name:10}{c.value:>10,.1f} {c.unit:8} median {c.median:,.1f}, lowest {c.lowest:,.1f} of {c.samples} "
        f"({c.kernel})" + ("" if c.modes is None else f", in two modes of {c.modes[0]:,.1f} and {c.modes[1]:,.1f}")
        for name, c in rows.items()
    ]
    return "\n".join(
        [f"{ceilings.device}, {ceilings.threads} threads, {ceilings.seconds:.1f} s", *lines, *ceilings.warnings]
    )


def _file(fingerprint: str, threads: int) -> Path:
    return cache_folder() / f"ceilings-{fingerprint}-{threads}.json"
