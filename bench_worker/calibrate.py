"""Measures the ceilings of this device: bandwidth of reading and copying, and matrix rate by number format.

Each is the best that any of several kernels reached in any repeat, over inputs that rotate so that caches can't flatter
them: a ceiling that a later measurement passes would be wrong. Repeats of all kernels take turns, so that a busy moment
hits them alike.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor

from bench_worker import host, machine_state, noise
from bench_worker.allocators import unpinned
from bench_worker.ceilings import INT8, Ceiling, Ceilings
from bench_worker.errors import Unavailable
from bench_worker.kernels import zentorch
from bench_worker.kernels.base import DTYPES, lacking
from bench_worker.roofline import Limits

#: Rounds over all kernels, at least and at most, and what those beyond the least may take together.
LEAST_ROUNDS, ROUNDS, SECONDS = 4, 12, 6.0
#: A buffer is at least this large, and twice the last-level cache; so many of them rotate.
BUFFER_BYTES, BUFFERS = 64 * 2**20, 4
#: A probe between the steps of a run has fewer: the steps in between leave nothing of them in the cache.
PROBE_BUFFERS = 2
#: Kernels that read a buffer, by name.
READS: dict[str, Callable[[Tensor], object]] = {
    "maximum of int8": lambda buffer: buffer.view(torch.int8).amax(),
    "maximum of int32": lambda buffer: buffer.view(torch.int32).amax(),
    "maximum of int64": lambda buffer: buffer.view(torch.int64).amax(),
    "sum of int64": lambda buffer: buffer.view(torch.int64).sum(),
}
COPY = "copy"
#: Rows, inner and outer size of the matrix products: those of experts, and square ones. A probe makes the first.
PRODUCTS = ((1024, 2048, 1536), (256, 2048, 1536), (2048, 768, 2048), (2048, 2048, 2048))
GPU_PRODUCTS = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 2048, 1536))
#: A product slower than this is left out of later rounds: its format has no fast kernel here.
TOO_SLOW_S = 0.05


@dataclass
class Kernel:
    """One way to reach the ceiling called ``ceiling``. ``run`` takes the turn; ``amount`` is its bytes or FLOPs."""

    ceiling: str
    name: str
    run: Callable[[int], object]
    amount: float
    seconds: list[float]


def calibrate(device: torch.device, threads: int) -> Ceilings:
    """Measure every ceiling. Takes a few seconds, and 4 buffers of `BUFFER_BYTES` or twice the cache."""
    started, before = time.perf_counter(), machine_state.snapshot()
    cache = _cache_bytes(device)
    dtypes = [dtype for dtype in DTYPES if lacking(dtype, device) is None]
    memory = _memory_kernels(device, max(BUFFER_BYTES, 2 * cache))
    kernels = [*memory, *matrix_kernels(device, dtypes, _shapes(device)), *_int8_kernels(device, _shapes(device))]
    measure(kernels, device, ROUNDS, SECONDS)
    flags = machine_state.flags(before, machine_state.snapshot(), len(host.PROCESSORS))
    return collect(kernels, device, threads, cache, time.perf_counter() - started, flags)


def calibrate_apart(threads: int) -> Ceilings:
    """`calibrate` in a process of its own, which also keeps them: whatever its kernels leave in caches and memory goes
    with it. Raises `Unavailable` where it fails."""
    command = [sys.executable, "-m", "bench_worker", "calibrate", "--threads", str(threads), "--json"]
    with unpinned():
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[-1]
        raise Unavailable(f"the ceilings of this machine could not be measured: {said}")
    return Ceilings.model_validate(json.loads(done.stdout)["ceilings"])


class Probe:
    """Ceilings measured between other work: each call takes a few milliseconds on the memory and one number format, and
    ``in_int8`` on that, too.

    `limits` gives those around one call, since the memory bus of a shared machine moves from second to second.
    """

    def __init__(self, device: torch.device, dtype: str, resident_bytes: float = inf, in_int8: bool = False) -> None:
        self._device, self._resident = device, resident_bytes
        self._cache = _cache_bytes(device)
        memory = _memory_kernels(device, max(BUFFER_BYTES, 2 * self._cache))
        self._kernels = [*memory, *matrix_kernels(device, [dtype], _shapes(device)[:1])]
        if in_int8:
            self._kernels += _int8_kernels(device, _shapes(device)[:1])
        self._started, self._before = time.perf_counter(), machine_state.snapshot()
        measure(self._kernels, device, 1, SECONDS)
        for kernel in self._kernels:
            kernel.seconds.clear()

    def __call__(self) -> None:
        clock = _cuda_seconds if self._device.type == "cuda" else cpu_seconds
        for kernel in self._kernels:
            kernel.seconds.append(clock(kernel.run, len(kernel.seconds)))

    @property
    def calls(self) -> int:
        return len(self._kernels[0].seconds)

    def limits(self, call: int, reach: int = 2) -> Limits:
        """The rates around call number ``call``: of each kernel the median of the calls up to ``reach`` before and
        after, and of all kernels the best. Medians, since times are judged by their median too: the best of many calls
        grows with their number, and plain reads would not reach it themselves."""
        around = slice(max(0, call - reach), call + reach + 1)
        rates: dict[str, float] = {}
        for kernel in self._kernels:
            rate = kernel.amount / statistics.median(kernel.seconds[around])
            what = {"read": "memory", "copy": "memory", INT8: INT8}.get(kernel.ceiling, "matrix")
            rates[what] = max(rate, rates.get(what, 0.0))
        return Limits(rates["memory"], rates["matrix"], self._cache, self._resident, rates.get(INT8))

    def ceilings(self, threads: int) -> Ceilings:
        """The best of all calls."""
        flags = machine_state.flags(self._before, machine_state.snapshot(), len(host.PROCESSORS))
        spent = time.perf_counter() - self._started
        return collect(self._kernels, self._device, threads, self._cache, spent, flags)


def measure(kernels: list[Kernel], device: torch.device, rounds: int, seconds: float) -> None:
    """Run ``rounds`` rounds over ``kernels``, the first of them for warming up, or as many as ``seconds`` allow."""
    clock = _cuda_seconds if device.type == "cuda" else cpu_seconds
    deadline = time.perf_counter() + seconds
    for turn in range(rounds + 1):
        for kernel in kernels:
            late = turn > LEAST_ROUNDS and time.perf_counter() > deadline
            if late or (turn > 1 and kernel.seconds[0] > TOO_SLOW_S):
                continue
            taken = clock(kernel.run, turn)
            if turn:
                kernel.seconds.append(taken)


def collect(
    kernels: list[Kernel], device: torch.device, threads: int, cache: int, seconds: float, flags: list[str]
) -> Ceilings:
    measured = {kernel.ceiling for kernel in kernels}
    matrix = {dtype: _best(kernels, dtype, 1e9, "GFLOP/s") for dtype in (*DTYPES, INT8) if dtype in measured}
    return Ceilings(
        device=device.type,
        threads=threads,
        read=_best(kernels, "read", 1e9, "GB/s"),
        copy_rate=_best(kernels, "copy", 1e9, "GB/s"),
        matrix=matrix,
        cache_bytes=cache,
        measured_at=datetime.now(UTC),
        seconds=seconds,
        warnings=[f"{flag} The ceilings may be too low: calibrate again on an idle machine." for flag in flags],
    )


def _best(kernels: list[Kernel], ceiling: str, scale: float, unit: str) -> Ceiling:
    own = [kernel for kernel in kernels if kernel.ceiling == ceiling]
    best = min(own, key=lambda kernel: min(kernel.seconds) / kernel.amount)
    rates = [best.amount / seconds / scale for seconds in best.seconds]
    return Ceiling(
        value=max(rates),
        unit=unit,
        kernel=best.name,
        median=statistics.median(rates),
        lowest=min(rates),
        samples=len(rates),
        by_kernel={kernel.name: kernel.amount / min(kernel.seconds) / scale for kernel in own},
        modes=noise.two_rates(rates),
    )


def bus_kernel(device: torch.device, name: str) -> Kernel | None:
    """The memory kernel called ``name``, for a probe; None where there is none of this name."""
    if name not in (*READS, COPY):
        return None
    kernels = _memory_kernels(device, max(BUFFER_BYTES, 2 * _cache_bytes(device)), PROBE_BUFFERS)
    return next(kernel for kernel in kernels if kernel.name == name)


def plain_product(device: torch.device, dtype: str) -> Kernel:
    """torch's own matrix product of the first shape, for a probe: it needs no other library."""
    return next(matrix_kernels(device, [dtype], _shapes(device)[:1]))


def _memory_kernels(device: torch.device, size: int, count: int = BUFFERS) -> list[Kernel]:
    # written, since pages that nobody has written are all read from one page in cache
    buffers = [torch.full((size,), fill, dtype=torch.uint8, device=device) for fill in range(1, count + 1)]
    half = size // 2
    # each starts at another buffer, so that none finds in the cache what the one before it read
    kernels = [
        Kernel("read", name, _rotating(read, buffers[place % count :] + buffers[: place % count]), size, [])
        for place, (name, read) in enumerate(READS.items())
    ]
    copy = Kernel("copy", COPY, lambda turn: _copy(buffers[turn % count], half), 2 * half, [])
    return [*kernels, copy]


def _rotating(function: Callable[[Tensor], object], inputs: list[Tensor]) -> Callable[[int], object]:
    return lambda turn: function(inputs[turn % len(inputs)])


def _copy(buffer: Tensor, half: int) -> None:
    buffer[:half].copy_(buffer[half : 2 * half])


def matrix_kernels(
    device: torch.device, dtypes: Iterable[str], shapes: Iterable[tuple[int, int, int]], weights: int = 2
) -> Iterator[Kernel]:
    """Products of ``shapes`` (rows, inner, outer), torch's and zentorch's; so many ``weights`` of each take turns."""
    for name in dtypes:
        dtype = DTYPES[name]
        for rows, inner, outer in shapes:
            flops = 2.0 * rows * inner * outer
            shape = f"{rows}×{inner}×{outer}"
            left = [torch.randn(rows, inner, device=device).to(dtype) for _ in range(2)]
            right = [torch.randn(outer, inner, device=device).to(dtype) for _ in range(weights)]
            yield Kernel(name, f"linear {shape}", _product(F.linear, left, right), flops, [])
            if name != "float16" and zentorch.missing(device) is None:
                yield Kernel(name, f"zentorch linear {shape}", _product(zentorch.linear, left, right), flops, [])


def _int8_kernels(device: torch.device, shapes: Iterable[tuple[int, int, int]]) -> Iterator[Kernel]:
    """torch's products of int8 matrices, which sum in int32: what the best of quantized experts may reach. Of a CPU,
    where experts are quantized; without oneDNN torch has a plain loop, which says nothing of the device."""
    for rows, inner, outer in shapes if device.type == "cpu" and torch.backends.mkldnn.is_available() else ():
        left, right = (
            [torch.randint(-127, 128, shape, dtype=torch.int8) for _ in range(2)]
            for shape in ((rows, inner), (inner, outer))
        )
        name = f"int_mm {rows}×{inner}×{outer}"
        yield Kernel(INT8, name, _product(torch._int_mm, left, right), 2.0 * rows * inner * outer, [])


def _shapes(device: torch.device) -> tuple[tuple[int, int, int], ...]:
    return GPU_PRODUCTS if device.type == "cuda" else PRODUCTS


def _product(
    function: Callable[[Tensor, Tensor], Tensor], left: list[Tensor], right: list[Tensor]
) -> Callable[[int], object]:
    return lambda turn: function(left[turn % len(left)], right[turn % len(right)])


def cpu_seconds(run: Callable[[int], object], turn: int) -> float:
    """How long one turn of a kernel takes on the CPU."""
    start = time.perf_counter()
    run(turn)
    return time.perf_counter() - start


def _cuda_seconds(run: Callable[[int], object], turn: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run(turn)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def _cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return host.last_level_cache_bytes()
