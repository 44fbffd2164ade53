"""A variant that only counts: what each rank gets and sends is exact, and nothing is moved or computed.

For layouts whose weights no machine here could hold. Shapes: ``L`` executed layers, ``R`` ranks, ``T`` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bench_worker.network import Network
from bench_worker.outcome import Outcome
from bench_worker.parallel.fitted import Fitted
from bench_worker.parallel.layout import Layout
from bench_worker.parallel.rank_layer import select
from bench_worker.parallel.replicas import Replicas
from bench_worker.parallel.step import ParallelStep, together
from bench_worker.parallel.timeline import modelled
from bench_worker.parallel.topology import Topology
from bench_worker.parallel.variant import rows_of_ranks, transfers_us
from bench_worker.result import Check
from bench_worker.routing import Assignments, SoftSlots
from bench_worker.scaling import EXCHANGES
from bench_worker.spec import Spec
from bench_worker.step_input import StepInput
from bench_worker.tally import tally
from bench_worker.variant_base import VariantBase


class CountingVariant(VariantBase):
    """Routes, places and counts as `ParallelVariant` with all ranks in one process does; only dispatch and combine have
    times, which ``topology`` models."""

    def __init__(self, spec: Spec, network: Network, fitted: Fitted, topology: Topology) -> None:
        super().__init__(spec, network)
        self.layout = Layout(**spec.parallel.layout.model_dump())
        self.fitted, self.topology = fitted, topology
        logical = fitted.placement.physical_to_logical
        self._replicas = [Replicas(own, network.model.experts, network.device) for own in logical]
        self._on_a_rank = logical.shape[1] // self.layout.num_ranks
        #: A token's experts depend on no other token, so that all ranks may choose in one go.
        self._token_by_token = spec.routing.capacity_factor is None and spec.routing.strategy in (
            "token_choice", "dynamic", "hash", "group_limited",
        )  # fmt: skip

    def warm(self) -> None:
        """There is nothing to warm up."""

    def reserve(self, tokens: int) -> None:
        self.router.prepare(tokens, self.network.device)

    def check(self) -> Check:
        """No output is computed, so none can be wrong."""
        return Check(rel_error=0.0, tolerance=0.0, tokens=0)

    @property
    def row_bytes(self) -> int:
        return self.network.model.hidden * self.network.dtype.itemsize

    def whole(self, inputs: StepInput) -> None:
        """Nothing was timed."""

    def run(self, inputs: StepInput) -> ParallelStep:
        """One step through the executed layers."""
        num_ranks = self.layout.num_ranks
        own_rows = rows_of_ranks(self.layout, inputs.layout)
        rows = np.zeros((len(self._replicas), num_ranks, num_ranks), np.int64)
        outcomes: list[Outcome] = []
        for ranks, given in self._selections(own_rows, inputs):
            routed = []
            for layer, scores in enumerate(given.scores):
                chosen = select(self.router, self.router.checked(scores, given.token_ids), given.token_ids)
                source, expert = self._sources(chosen, ranks)
                destination = self._replicas[layer].physical(expert, source) // self._on_a_rank
                pairs = torch.bincount(source * num_ranks + destination, minlength=num_ranks**2)
                rows[layer] += pairs.view(num_ranks, num_ranks).cpu().numpy()
                routed.append(chosen)
            outcomes.append(tally(routed, given.scores, given.token_ids, self.network.model.experts, self.own_router))
        names = [name for _ in self._replicas for name in EXCHANGES]
        transfers = transfers_us(self.topology, self.layout, rows * self.row_bytes)
        timeline = modelled(names, np.zeros((num_ranks, len(names))), transfers)
        return ParallelStep(rows, rows.sum(axis=(0, 1)), together(outcomes), timeline)

    def _selections(self, own_rows: list[np.ndarray], inputs: StepInput) -> Iterator[tuple[Tensor, StepInput]]:
        """Tokens that choose together: the rank of each [T], and their part of ``inputs``."""
        device = self.network.device
        rank_of_row = np.empty(inputs.token_ids.numel(), np.int64)
        for rank, own in enumerate(own_rows):
            rank_of_row[own] = rank
        if self._token_by_token:
            ranks = torch.from_numpy(rank_of_row).to(device)
            yield ranks, inputs
            return
        for rank, own in enumerate(own_rows):
            if not own.size:
                continue
            at = torch.from_numpy(own).to(device)
            scores = [layer[at] for layer in inputs.scores]
            part = StepInput(inputs.layout, inputs.token_ids[at], inputs.hidden[:0], scores)
            yield torch.full((own.size,), rank, device=device), part

    def _sources(self, chosen: Assignments | SoftSlots, ranks: Tensor) -> tuple[Tensor, Tensor]:
        """The rank that sends each row, and the expert that it is for."""
        if isinstance(chosen, Assignments):
            return ranks[chosen.token], chosen.expert
        slots = chosen.dispatch.shape[1]
        expert = torch.arange(self.router.num_experts, device=ranks.device)
        return ranks[:1].expand(slots), expert.repeat_interleave(slots // self.router.num_experts)
