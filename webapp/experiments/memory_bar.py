"""The memory of one device as a bar and as a table: what a deployment holds, part by part (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bench_worker import capacity
from webapp.ui import formatting
from webapp.ui.pictures import Piece

#: What a reader tells apart, and the parts of `bench_worker.capacity.Fit` that it is made of.
WEIGHTS = {
    "attention": ("attention",),
    "embeddings": ("embedding", "lm_head"),
    "experts": ("experts",),
    "shared experts": ("shared_experts",),
    "dense FFN": ("dense_ffn",),
    "routers": ("router",),
    "norms": ("norms",),
}


class Row(NamedTuple):
    """``format``: the number format. ``share``: of the device's memory, of 1; None where that isn't known."""

    name: str
    bytes: int
    format: str
    share: float | None


@dataclass(frozen=True)
class MemoryBar:
    """The parts that take any memory; together they are ``total_bytes``."""

    rows: list[Row]
    total_bytes: int
    device_bytes: int | None

    @property
    def share(self) -> float | None:
        return self.total_bytes / self.device_bytes if self.device_bytes else None

    @property
    def pieces(self) -> list[Piece]:
        return [Piece(row.name, row.bytes, f"{row.name}: {formatting.size(row.bytes)}") for row in self.rows]

    @property
    def label(self) -> str:
        """The picture in words."""
        against = "" if self.device_bytes is None else f" against {formatting.size(self.device_bytes)} of the device"
        return f"Memory by part, {formatting.size(self.total_bytes)}{against}; the table has the numbers"


def memory_bar(deployment: capacity.Fit) -> MemoryBar:
    """What ``deployment`` holds on its worst rank."""
    parts, formats, device_bytes = deployment.parts, deployment.formats, deployment.device_bytes
    dtype = formats["kv_cache"]
    counted = [
        (name, sum(parts.get(part, 0) for part in of), formats.get(of[0], dtype)) for name, of in WEIGHTS.items()
    ]
    counted += [("KV cache", deployment.kv_bytes, dtype), ("buffers", deployment.buffers_bytes, dtype)]
    return MemoryBar(
        rows=[
            Row(name, count, number_format, count / device_bytes if device_bytes else None)
            for name, count, number_format in counted
            if count
        ],
        total_bytes=deployment.total_bytes,
        device_bytes=device_bytes,
    )
