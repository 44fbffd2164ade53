"""What only CUDA has: decode steps replayed as CUDA graphs, and the device's idle time from the profiler.

Eager decode mostly measures how fast the host launches kernels; a graph launches them all at once. Not verified on a
GPU until ``tests/gpu/check.sh`` has passed there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from bench_worker.layer import MoELayer
from bench_worker.stages import LAYER, NoClock, WholeClock
from bench_worker.step_input import StepInput
from bench_worker.variant import Variant

REPLAYS = 5


@dataclass(frozen=True)
class Captured:
    """A graph of one layer, and the tensors that it reads (``hidden``, ``scores``) and writes (``output``)."""

    graph: torch.cuda.CUDAGraph
    hidden: Tensor
    scores: Tensor
    output: Tensor


class DecodeGraphs:
    """One MoE layer of a variant, captured once for each size of decode step.

    A graph reads and writes the addresses that it saw at capture, so it lives only as long as the row buffer keeps its
    place: for one condition, after `Variant.reserve`.
    """

    def __init__(self, variant: Variant) -> None:
        self._network, self._layer = variant.network, variant.layers[0]
        self._captured: dict[int, Captured] = {}
        self._clock = WholeClock(variant.network.device)

    @staticmethod
    def possible(variant: Variant) -> bool:
        """Whether a step asks the device for nothing: a captured graph can't wait for an answer."""
        routing, layer = variant.spec.routing, variant.layers[0]
        plain = routing.strategy == "token_choice" and routing.capacity_factor is None
        return plain and isinstance(layer, MoELayer) and all(backend.graphable for backend in layer.experts.each())

    def times_us(self, scores: Tensor) -> tuple[float, float]:
        """Median time of the first layer on ``scores`` [T, E], launched kernel by kernel and replayed as a graph; the
        two take turns."""
        captured = self.captured(scores)
        captured.scores.copy_(scores)
        eager, replayed = [], []
        for _ in range(REPLAYS):
            self._clock.begin()
            self._layer.forward(captured.hidden, captured.scores, self._clock)
            eager.append(self._clock.read()[LAYER])
            self._clock.begin()
            captured.graph.replay()
            self._clock.outer(LAYER)
            replayed.append(self._clock.read()[LAYER])
        return statistics.median(eager), statistics.median(replayed)

    def captured(self, scores: Tensor) -> Captured:
        """The graph for a step like that of ``scores`` [T, E], captured at the first one of its size."""
        if scores.shape[0] not in self._captured:
            self._captured[scores.shape[0]] = self._capture(scores)
        return self._captured[scores.shape[0]]

    def _capture(self, scores: Tensor) -> Captured:
        network, layer = self._network, self._layer
        hidden = torch.randn(scores.shape[0], network.model.hidden, device=network.device).to(network.dtype)
        held, nothing = scores.clone(), NoClock()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries make their workspaces before the capture, on another stream
            for _ in range(3):
                layer.forward(hidden, held, nothing)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output, _ = layer.forward(hidden, held, nothing)
        return Captured(graph, hidden, held, output)


def idle_share_of_step(variant: Variant, inputs: StepInput) -> float:
    """Share of a step's span on the device in which no kernel ran."""
    return idle_share(kernel_spans(variant, inputs))


def kernel_spans(variant: Variant, inputs: StepInput) -> list[tuple[float, float]]:
    """Start and end in µs of every kernel and copy of one step, as the profiler saw them."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        variant.step(inputs, NoClock())
        torch.cuda.synchronize()
    return [
        (event.time_range.start, event.time_range.end)
        for event in seen.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]


def idle_share(spans: Iterable[tuple[float, float]]) -> float:
    """1 − the union of ``spans`` (start, end) over the time from the first start to the last end; 0 without any."""
    ordered = sorted(spans)
    if not ordered:
        return 0.0
    first, reached = ordered[0]
    busy = reached - first
    for start, end in ordered[1:]:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return 1 - busy / (reached - first) if reached > first else 0.0
