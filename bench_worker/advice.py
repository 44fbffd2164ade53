"""Next experiments for a run, each of which changes one variable. Pure; torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench_worker import models
from bench_worker.errors import SpecError
from bench_worker.findings import Advice, Cost
from bench_worker.kernels import rules
from bench_worker.result import Run
from bench_worker.spec import Experiment, Library
from bench_worker.spec_rules import flat

__all__ = ["NAMES", "advise"]

#: The costs in words.
NAMES: dict[Cost, str] = {
    "weights": "weight streaming",
    "compute": "expert compute",
    "communication": "communication",
    "waiting": "waiting",
    "overhead": "routing and packing",
    "attention": "attention",
}

MOST_ADVICE = 3
#: A cost with a smaller share is not worth an experiment.
LEAST_SHARE = 0.1
#: Experts that reach more of their floor leave a kernel little to gain.
GOOD_SHARE = 0.75
#: Copies of hot experts to begin with, and how many times more requests in flight to try.
REDUNDANT, MORE_CONCURRENCY = 8, 4
#: Strategies other than the model's own choose other experts.
OTHER_EXPERTS = "; it changes the expert set"


class Idea(NamedTuple):
    """``value`` for ``field``; ``words`` name the change. Of the workload's fields only those of a condition vary."""

    field: str
    value: Any
    words: str
    because: str = ""


def advise(
    run: Run, shares: Mapping[Cost, float], tried: Sequence[Mapping[str, Any]] = (), device: str = "cpu"
) -> list[Advice]:
    """The ideas against the largest shares that this version can measure on a ``device`` like the run's, the largest
    first; none of the configurations that are ``tried`` already, as `bench_worker.spec_rules.flat` gives them."""
    found: dict[str, Advice] = {}
    own = flat(run.spec.model_dump(mode="json"))
    worth = [cost for cost in IDEAS if shares[cost] >= LEAST_SHARE]
    ideas = [(cost, idea) for cost in sorted(worth, key=lambda cost: -shares[cost]) for idea in IDEAS[cost](run)]
    for cost, idea in ideas:
        if idea.field in found or own | {idea.field: idea.value} in tried:
            continue
        sentence = f"{idea.words}: {idea.because or f'{_cost(cost, run)} is {shares[cost]:.0%}'}"
        if (document := _document(run, idea, sentence, device)) is not None:
            found[idea.field] = Advice(sentence=sentence, field=idea.field, experiment=document)
    return list(found.values())[:MOST_ADVICE]


def _cost(cost: Cost, run: Run) -> str:
    """An assumed or modelled network is never named without the word."""
    if run.exchange is None or run.exchange.network == "measured" or cost not in ("communication", "waiting"):
        return NAMES[cost]
    return f"{NAMES[cost]} ({run.exchange.network} network)"


def _document(run: Run, idea: Idea, title: str, device: str) -> dict[str, Any] | None:
    """The experiment that holds the run against ``idea``; None where this version can't run it."""
    group, _, leaf = idea.field.partition(".")
    now: Any = run.spec.model_dump(mode="json")
    for name in idea.field.split("."):
        now = now[name]
    document: dict[str, Any] = {
        "schema": 1,
        "title": title,
        "base": run.spec.model_dump(mode="json", exclude_defaults=True),
    }
    if group == "workload":
        document["conditions"] = [{leaf: now}, {leaf: idea.value}]
    else:
        document["vary"] = {"field": idea.field, "values": [now, idea.value]}
    names = frozenset(filter(None, [run.spec.workload.trace, run.spec.load.recording]))
    try:
        experiment = Experiment.model_validate(document, context=Library(names, names, allow_paths=True))
    except SpecError:
        return None
    specs = [spec for _, spec in experiment.variants()]
    refused = any(rules.refusal(spec.kernels.experts, spec) or rules.beyond_cpus(spec, device) for spec in specs)
    return None if refused else document


def _for_weights(run: Run) -> Iterator[Idea]:
    yield from _better_kernel(run)
    yield from _more_in_flight(run)
    yield from _quantized(run)


def _for_compute(run: Run) -> Iterator[Idea]:
    yield from _better_kernel(run)
    top_k = run.spec.routing.top_k or models.load(run.spec.model, allow_paths=True).top_k
    if top_k > 1:
        yield Idea("routing.top_k", top_k // 2, f"top-k {top_k // 2} instead of {top_k}{OTHER_EXPERTS}")
    yield from _quantized(run)


def _for_communication(run: Run) -> Iterator[Idea]:
    if run.spec.parallel.placement != "locality":
        yield Idea("parallel.placement", "locality", "placement locality")
    if run.spec.routing.strategy != "group_limited":
        yield Idea("routing.strategy", "group_limited", f"group-limited routing{OTHER_EXPERTS}")


def _for_waiting(run: Run) -> Iterator[Idea]:
    parallel = run.spec.parallel
    copies = parallel.redundant_experts
    if parallel.placement != "eplb":
        yield Idea(
            "parallel.placement", "eplb", f"placement eplb{f' with {copies} redundant experts' if copies else ''}"
        )
    else:
        ranks = parallel.layout.num_ranks
        more = copies + ranks * -(-REDUNDANT // ranks)
        yield Idea("parallel.redundant_experts", more, f"placement eplb with {more} redundant experts")
    if run.spec.routing.strategy != "balanced":
        yield Idea("routing.strategy", "balanced", f"balanced routing{OTHER_EXPERTS}")


def _for_overhead(run: Run) -> Iterator[Idea]:
    if run.spec.routing.solver == "exact":
        yield Idea("routing.solver", "auction", "the auction instead of the exact solver")
    yield from _better_kernel(run)
    yield from _more_in_flight(run)


#: By cost; no change of the MoE layers touches the attention.
IDEAS: dict[Cost, Callable[[Run], Iterator[Idea]]] = {
    "weights": _for_weights, "compute": _for_compute, "communication": _for_communication, "waiting": _for_waiting,
    "overhead": _for_overhead,
}  # fmt: skip


def _better_kernel(run: Run) -> Iterator[Idea]:
    limit = run.summary.limits.get("experts") if run.summary else None
    if limit is not None and limit.share < GOOD_SHARE and run.spec.kernels.experts != "auto":
        because = f"{run.spec.kernels.experts} reaches {limit.share:.0%} of what the device can do"
        yield Idea("kernels.experts", "auto", "experts kernel auto", because)


def _more_in_flight(run: Run) -> Iterator[Idea]:
    """One reading of the weights, and the fixed cost of a step, serve more requests."""
    work = run.spec.workload
    more = MORE_CONCURRENCY * work.concurrency
    if more <= work.requests:
        yield Idea("workload.concurrency", more, f"concurrency {more}")


def _quantized(run: Run) -> Iterator[Idea]:
    if run.spec.kernels.quantization == "none":
        yield Idea("kernels.quantization", "int8", "experts in int8")
