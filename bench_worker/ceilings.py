"""What a device can do at best, as `bench_worker.calibrate` measured it, and the file that keeps it. Torch-free."""

from __future__ import annotations

import os
from datetime import datetime
from math import inf
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from bench_worker.roofline import Limits

__all__ = ["Ceiling", "Ceilings", "as_text", "cache_folder", "keep", "load"]


class Ceiling(BaseModel):
    """The best rate that any kernel reached, in ``unit``; ``median`` and ``lowest`` are the same kernel's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    unit: str
    kernel: str
    median: float
    lowest: float
    samples: int

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
    #: By number format.
    matrix: dict[str, Ceiling]
    cache_bytes: int
    measured_at: datetime
    seconds: float
    #: What may have lowered them, one sentence each.
    warnings: list[str]

    def limits(self, dtype: str, resident_bytes: float = inf) -> Limits:
        """For work in ``dtype``: the better of the two bandwidths, since a stage may read, write or both."""
        bandwidth = max(self.read.value, self.copy_rate.value)
        return Limits(bandwidth * 1e9, self.matrix[dtype].value * 1e9, self.cache_bytes, resident_bytes)


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
        f"({c.kernel})"
        for name, c in rows.items()
    ]
    return "\n".join(
        [f"{ceilings.device}, {ceilings.threads} threads, {ceilings.seconds:.1f} s", *lines, *ceilings.warnings]
    )


def _file(fingerprint: str, threads: int) -> Path:
    return cache_folder() / f"ceilings-{fingerprint}-{threads}.json"
