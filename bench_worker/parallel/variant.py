"""A variant whose experts are spread over ranks: all of them in this process, or one of them.

Shapes: ``L`` executed layers, ``T`` tokens of a step, ``R`` ranks, ``P`` physical experts, ``E`` logical ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench_worker.errors import Unavailable
from bench_worker.kernels import registry
from bench_worker.kernels.base import ExpertBackend
from bench_worker.kernels.permute import RowBuffer
from bench_worker.network import Network
from bench_worker.outcome import Outcome
from bench_worker.parallel.check import check
from bench_worker.parallel.exchange import Exchange
from bench_worker.parallel.fitted import Fitted
from bench_worker.parallel.group_traffic import GroupTraffic
from bench_worker.parallel.layout import Layout
from bench_worker.parallel.rank_around import RanksAround, around_step, traffic_of
from bench_worker.parallel.rank_layer import RankLayer
from bench_worker.parallel.replicas import Replicas
from bench_worker.parallel.step import ParallelStep, Whole, together
from bench_worker.parallel.timeline import Timeline, measured, modelled
from bench_worker.parallel.topology import Topology
from bench_worker.result import Check
from bench_worker.roofline import Work, layer_work
from bench_worker.routing import Assignments, SoftSlots
from bench_worker.scaling import EXCHANGES, UNTIMED, in_group, top
from bench_worker.spec import Spec
from bench_worker.stages import LAYER, Clock, HostClock, StageClock, WholeHostClock
from bench_worker.step_input import StepInput
from bench_worker.step_layout import StepLayout
from bench_worker.tally import tally
from bench_worker.variant_base import VariantBase


class LayerPass(NamedTuple):
    """Of one layer, an entry for each executed rank: outputs [T_r, H], choices, ``sent`` int64 [P] rows to each expert,
    and ``received`` int64 [R, P/R] rows from each rank for each of its own."""

    outputs: list[Tensor]
    routed: list[Assignments | SoftSlots]
    sent: list[Tensor]
    received: list[Tensor]


class RankInput(NamedTuple):
    """One rank's part of a step: ``hidden`` [T_r, H], ``token_ids`` int64 [T_r], and for each layer ``scores``
    [T_r, E]."""

    hidden: Tensor
    token_ids: Tensor
    scores: list[Tensor]


@dataclass(frozen=True)
class RankReport:
    """What one rank has to say of a step. ``spans_us``: time of each mark; ``rows`` int64 [L, R] that it sent to each
    rank; ``computed`` rows, padding included; ``work`` of its experts, over all layers."""

    start_us: float
    spans_us: list[tuple[str, float]]
    rows: np.ndarray
    computed: int
    work: dict[str, Work]
    outcome: Outcome


class ParallelVariant(VariantBase):
    """Executes the ranks of ``exchange``. ``topology`` models the wires between ranks of one process. It is None where
    rows really travel; then ``sign`` hears of every stage that has ended. Raises `Unavailable` where a part can't run
    on the network's device."""

    def __init__(
        self,
        spec: Spec,
        network: Network,
        fitted: Fitted,
        exchange: Exchange,
        topology: Topology | None,
        sign: Callable[[str], None] = lambda _: None,
    ) -> None:
        if reason := registry.refusal(spec, network.device):
            raise Unavailable(reason)
        super().__init__(spec, network)
        self.layout = Layout(**spec.parallel.layout.model_dump())
        self.fitted, self.exchange, self.topology = fitted, exchange, topology
        self._sign = sign
        self._clocks: list[StageClock] = [
            HostClock(network.device, sign) if topology is None else StageClock(network.device) for _ in exchange.ranks
        ]
        self._buffers: list[RowBuffer] = []
        self.layers = self._layers()

    def _layers(self) -> list[list[RankLayer]]:
        """For each executed layer, the part of each rank."""
        network, placement = self.network, self.fitted.placement
        per_rank = placement.physical_to_logical.shape[1] // self.layout.num_ranks
        mixed, own = self._buffer(), self._buffer()
        sent = [self._buffer() for _ in self.exchange.ranks]
        layers = []
        for place, weights in enumerate(network.layers):
            logical = placement.physical_to_logical[place]
            replicas = Replicas(logical, network.model.experts, network.device)
            layers.append([
                RankLayer(
                    rank, weights.gate, weights.shared,
                    self._backend(place, logical[rank * per_rank : (rank + 1) * per_rank].tolist()),
                    self.router, replicas, logical.size, (mixed, buffer, own), network.model.weight_on_input,
                )
                for rank, buffer in zip(self.exchange.ranks, sent, strict=True)
            ])  # fmt: skip
        return layers

    def _buffer(self) -> RowBuffer:
        self._buffers.append(RowBuffer(self.network.model.hidden, self.network.dtype, self.network.device))
        return self._buffers[-1]

    def _backend(self, layer: int, logical: list[int]) -> ExpertBackend:
        kernels = self.spec.kernels
        weights = self.network.experts_of_rank(layer, logical, kernels.quantization)
        # A capacity limits what one rank's tokens send to an expert, not what it gets from all of them.
        routing = self.spec.routing.model_copy(update={"capacity_factor": None})
        spec = self.spec.model_copy(update={"routing": routing})
        return registry.build(kernels.experts, kernels.fusion, weights, spec, self.network.model)

    def warm(self) -> None:
        """Pack weights and make kernels now, not in the first steps."""
        for layer in self.layers:
            for part in layer:
                part.experts.warm()

    def reserve(self, tokens: int) -> None:
        """Make what a step of ``tokens`` needs for its selection."""
        self.router.prepare(tokens, self.network.device)

    def poison(self) -> None:
        """Fill all buffers with NaN, so that a row nobody wrote shows in the result."""
        self.exchange.poison()
        for buffer in self._buffers:
            buffer.poison()

    def split(self, inputs: StepInput) -> list[RankInput]:
        """Each executed rank's own tokens."""
        device, rows = self.network.device, rows_of_ranks(self.layout, inputs.layout)
        chosen = [torch.from_numpy(rows[rank]).to(device) for rank in self.exchange.ranks]
        return [
            RankInput(
                inputs.hidden[own] if len(inputs.hidden) else inputs.hidden,  # attention makes it
                inputs.token_ids[own],
                [self._checked(scores[own], inputs.token_ids[own]) for scores in inputs.scores],
            )
            for own in chosen
        ]

    def _checked(self, scores: Tensor, token_ids: Tensor) -> Tensor:
        return self.router.checked(scores, token_ids) if scores.shape[0] else scores

    @property
    def row_bytes(self) -> int:
        """Of one row on the wire."""
        return self.network.model.hidden * self.network.dtype.itemsize

    def forward(
        self, layer: int, given: list[RankInput], clocks: Sequence[Clock], around: RanksAround | None = None
    ) -> LayerPass:
        """One MoE layer on the executed ranks, read top to bottom in stage order; ``around`` it, where measured, the
        attention before it."""
        parts = self.layers[layer]
        entered = [own.hidden for own in given] if around is None else around.attend(layer, clocks)
        sent = []
        for part, own, hidden, clock in zip(parts, given, entered, clocks, strict=True):
            clock.outer(UNTIMED)
            sent.append(part.send(hidden, own.scores[layer], own.token_ids, clock))

        inbound = self.exchange.dispatch(sent)

        results, shared = [], []
        for part, received, hidden, clock in zip(parts, inbound, entered, clocks, strict=True):
            clock.inner("dispatch")
            result, beside = part.compute(received, hidden, clock)
            results.append(result)
            shared.append(beside)

        back = self.exchange.combine(results)

        outputs = []
        for outbound, rows, beside, clock in zip(sent, back, shared, clocks, strict=True):
            clock.inner("combine.transfer")
            output = outbound.reduce(rows)
            if beside is not None:
                output += beside
            clock.inner("combine.reduce")
            clock.outer(LAYER)
            outputs.append(output)
        if around is not None:
            around.leave(outputs, clocks)
        counts = [one.counts for one in sent]
        return LayerPass(outputs, [one.routed for one in sent], counts, [one.counts for one in inbound])

    def run(self, inputs: StepInput) -> ParallelStep:
        """One step through the executed layers."""
        given = self.split(inputs)
        around = around_step(self.network, self.layout, self.exchange, inputs)
        self.exchange.meet()
        for clock in self._clocks:
            clock.begin()
        passes = self._step(given, around, self._clocks)
        reports = self.exchange.gather([self._report(place, given[place], passes) for place in range(len(given))])
        rows = np.stack([report.rows for report in reports], axis=1)
        traffic = traffic_of(self.network, self.layout, inputs.layout)
        names = [name for name, _ in reports[0].spans_us]
        return ParallelStep(
            rows=rows,
            computed=np.array([report.computed for report in reports]),
            work=[report.work for report in reports],
            outcome=together([report.outcome for report in reports]),
            timeline=self._timeline(reports, rows, traffic),
            group_bytes=None if traffic is None else traffic.sent(names),
        )

    def _step(self, given: list[RankInput], around: RanksAround | None, clocks: Sequence[Clock]) -> list[LayerPass]:
        """The executed layers, and what stands ``around`` them."""
        if around is not None:
            around.begin(clocks)
        passes = [self.forward(layer, given, clocks, around) for layer in range(len(self.layers))]
        if around is not None:
            around.end(clocks)
        return passes

    def whole(self, inputs: StepInput) -> Whole | None:
        """The same step under the outer marks alone; None where ranks run one after the other, whose layers have no
        time as a whole."""
        if self.topology is not None:
            return None
        given, clock = self.split(inputs), WholeHostClock(self.network.device, self._sign)
        around = around_step(self.network, self.layout, self.exchange, inputs)
        self.exchange.meet()
        clock.begin()
        self._step(given, around, [clock])
        start, spans = clock.start_us - self.exchange.clock_offset_us, clock.spans()
        told = self.exchange.gather([(start, [us for _, us in spans])])
        starts_us, spans_us = np.array([start for start, _ in told]), np.array([own for _, own in told])
        beside = measured([name for name, _ in spans], starts_us, spans_us, self.layout.group_of_rank())
        around_us = np.sum(list(beside.stages_us.values()), axis=0) + np.zeros(len(told))
        return Whole(float((starts_us + spans_us.sum(axis=1)).max() - starts_us.min()), around_us)

    def _report(self, place: int, given: RankInput, passes: list[LayerPass]) -> RankReport:
        clock, num_ranks = self._clocks[place], self.layout.num_ranks
        routed = [one.routed[place] for one in passes]
        start_us = clock.start_us - self.exchange.clock_offset_us if isinstance(clock, HostClock) else 0.0
        parts = zip(self.layers, passes, strict=True)
        return RankReport(
            start_us=start_us,
            spans_us=clock.spans(),
            rows=np.stack([one.sent[place].view(num_ranks, -1).sum(dim=1).cpu().numpy() for one in passes]),
            computed=sum(layer[place].computed_rows(one.received[place]) for layer, one in parts),
            work=self._work(given.token_ids.numel(), [one.received[place].sum(dim=0).cpu().numpy() for one in passes]),
            outcome=tally(routed, given.scores, given.token_ids, self.network.model.experts, self.own_router),
        )

    def _work(self, tokens: int, received: Sequence[np.ndarray]) -> dict[str, Work]:
        """What a rank's experts have to do for the rows [P/R] that each ``received``, and the shared one for its own
        ``tokens``, over all layers."""
        total: dict[str, Work] = {}
        for rows in received:
            size, quantization = self.network.dtype.itemsize, self.spec.kernels.quantization
            works = layer_work(self.network.model, size, tokens, rows, quantization=quantization)
            for stage, own in works.items():
                if top(stage) == "experts":
                    total[stage] = total.get(stage, Work()) + own
        return total

    def _timeline(self, reports: list[RankReport], rows: np.ndarray, traffic: GroupTraffic | None) -> Timeline:
        names = [name for name, _ in reports[0].spans_us]
        spans_us = np.array([[us for _, us in report.spans_us] for report in reports])
        groups = self.layout.group_of_rank()
        if self.topology is None:
            return measured(names, np.array([report.start_us for report in reports]), spans_us, groups)
        transfers = transfers_us(self.topology, self.layout, rows * self.row_bytes)
        if traffic is not None:
            for leaf in filter(in_group, names):
                again = transfers.setdefault(leaf, [])
                again.append(again[0] if again else traffic.times_us(self.topology, leaf))
        return modelled(names, spans_us, transfers, groups)

    def check(self) -> Check:
        """The first layer against the float64 reference of each rank's own tokens."""
        return check(self)


def rows_of_ranks(layout: Layout, step: StepLayout) -> list[np.ndarray]:
    """The rows [T_r] of ``step`` that belong to each rank."""
    return layout.rows_of_ranks(*step.requests)


def transfers_us(topology: Topology, layout: Layout, sent: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Times [R] of the exchanges of each layer by their name, for ``sent`` [L, R, R] bytes."""
    nodes = layout.node_of_rank()
    ways = topology.exchange_us(sent, nodes, "dispatch"), topology.exchange_us(sent.swapaxes(1, 2), nodes, "combine")
    return {name: list(times) for name, times in zip(EXCHANGES, ways, strict=True)}
