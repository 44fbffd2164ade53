"""What a reader must know about a run before its numbers: sentences from what was asked for. Pure; torch-free."""

from __future__ import annotations

from bench_worker.capacity import beyond_context
from bench_worker.models import GQA, Model
from bench_worker.spec import Spec
from bench_worker.strategies import NON_CAUSAL, STRATEGIES
from bench_worker.workload.recordings import Recording


def run_notes(spec: Spec, model: Model, longest: int, recorded: Recording | None) -> list[str]:
    """What a reader must know about a run's numbers whatever they are, one sentence each.

    ``longest``: tokens of the trace's longest request; ``recorded``: the expert load that it replays.
    """
    found = []
    if not spec.kernels.attention:
        found.append(
            "Only the MoE layers were measured: step_us leaves out attention, embedding and head, and there are no "
            "request latencies."
        )
    if warning := beyond_context(model, longest):
        found.append(warning)
    if left_out := _not_computed(model):
        found.append(f"Counted in memory and not computed for {model.name}: {', '.join(left_out)}.")
    return [*found, *_routing_notes(spec, recorded)]


def _routing_notes(spec: Spec, recorded: Recording | None) -> list[str]:
    """What a reader must know about the strategy and the expert load."""
    strategy, load, found = spec.routing.strategy, spec.load, []
    if not STRATEGIES[strategy].causal:
        found.append(f"{strategy} is non-causal: {NON_CAUSAL}.")
    if strategy == "soft":
        found.append("soft has no assignments; its slots are counted in their place.")
    replayed = recorded is not None and recorded.ids is not None
    if recorded is not None:
        found.append(f"The expert load is recorded: {load.recording}, {recorded.described()}.")
        if recorded.dropped_rows:
            found.append(f"{recorded.dropped_rows:,} rows of a profiling pass were left out of the recording.")
    if load.correlation:
        found.append(
            "The recorded tokens are replayed one by one, so correlation is not used."
            if replayed
            else f"Scores of a request's consecutive tokens are correlated ({load.correlation:g})."
        )
    return found


def _not_computed(model: Model) -> list[str]:
    """Small parts of the model that the layer here leaves out."""
    gqa = model.attention if isinstance(model.attention, GQA) else None
    parts = {
        "expert biases": model.expert_bias,
        "the router's bias": model.router_bias,
        "the shared expert's gate": model.shared_gate,
        "attention biases": gqa is not None and gqa.bias is not None,
        "attention sinks": gqa is not None and gqa.sinks,
    }
    return [part for part, has in parts.items() if has]
