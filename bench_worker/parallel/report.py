"""What a run's result says about its ranks: what they held and sent, and how far to trust the times between them."""

from __future__ import annotations

from typing import get_args

from bench_worker.parallel.counting import CountingVariant
from bench_worker.parallel.topology import Topology
from bench_worker.parallel.variant import ParallelVariant
from bench_worker.rank_record import RankStep, dispatched_bytes
from bench_worker.recording import RunRecord
from bench_worker.result import Domain, Exchange, Origin, Run

__all__ = ["add_ranks"]

MODELLED = (
    "Measured compute, modelled network: ranks ran one after the other on one device, and only the wires are a model"
)
COUNTED = (
    "Only counted, modelled network: no row was moved and no expert computed, so dispatch and combine alone have times"
)


def add_ranks(run: Run, variant: ParallelVariant | CountingVariant, record: RunRecord | None) -> None:
    """Complete ``run`` with what only a variant on several ranks knows."""
    fitted, layout = variant.fitted, variant.layout
    nodes = layout.node_of_rank()
    steps = [step.ranks for step in record.steps if step.ranks is not None] if record else []
    sent = dispatched_bytes(steps) if steps else None
    network: Origin = "measured"
    if (topology := variant.topology) is not None:
        used = [domain for domain in get_args(Domain) if any(_sent(step, domain) for step in steps)]
        ranks_a_node = layout.num_ranks // layout.nodes
        network = topology.origin(used, ranks_a_node)
        run.notes.insert(0, _note(variant, topology, used, ranks_a_node))
    run.exchange = Exchange(
        nodes=nodes.tolist(),
        physical_to_logical=fitted.placement.physical_to_logical.tolist(),
        rank_of_physical=fitted.placement.rank_of_physical.tolist(),
        dispatched_bytes=[] if sent is None else sent.tolist(),
        fitted_to=fitted.fitted_to,
        fitted_imbalance=fitted.imbalance,
        held_out_imbalance=fitted.held_out,
        network=network,
        topology=None if topology is None else topology.name,
        count_only=isinstance(variant, CountingVariant),
        clock_offsets_us=variant.exchange.clock_offsets_us if isinstance(variant, ParallelVariant) else [],
    )
    if run.summary is None:
        return
    if topology is not None:
        run.origins |= {"layer_us": network, "step_us": network, "requests": network, "stages_us": "measured"}
    run.origins |= {"dispatch": network, "combine": network, "idle": network}
    if variant.layout.tp > 1 and run.spec.kernels.attention:
        run.origins |= {"attention": network, "other": network}
    if fitted.imbalance is not None:
        run.notes.append(
            f"The placement was fitted to the {fitted.fitted_to}: max/mean rank load {fitted.imbalance:.3f} there, "
            f"{run.summary.imbalance:.3f} in this run."
            + (
                ""
                if fitted.held_out is None
                else f" Fitted to one half of that load, {fitted.held_out:.3f} on the other."
            )
        )


def _sent(step: RankStep, domain: Domain) -> bool:
    """Whether anything travelled in ``domain``."""
    return bool(step.bytes[domain].any() or (domain in step.group_bytes and step.group_bytes[domain].any()))


def _note(variant: ParallelVariant | CountingVariant, topology: Topology, used: list[str], ranks_a_node: int) -> str:
    head = COUNTED if isinstance(variant, CountingVariant) else MODELLED
    return f"{head} ({topology.name}). {'; '.join(topology.sources(used, ranks_a_node))}."
