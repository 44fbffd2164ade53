"""What a step's time goes to, and what to try next. Pure; torch-free.

| cost | stages |
| --- | --- |
| weights, compute | ``experts``, divided as bandwidth and arithmetic set its floor (`Limit.by_memory`) |
| communication | ``dispatch``, ``combine.transfer`` and the collectives of tensor-parallel groups: all is exposed |
| waiting | ``idle``: mean over the ranks |
| overhead | ``route``, ``permute``, and the rest of ``combine`` |
| attention | ``attention`` and ``other``: what no change of the MoE layers touches |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, get_args

import numpy as np

from bench_worker.advice import MOST_ADVICE, NAMES, advise
from bench_worker.findings import Cost, Dominant, Verdict, Verdicts
from bench_worker.result import Origin, Run
from bench_worker.scaling import IDLE, model_leaves, top, travels
from bench_worker.spec_rules import flat

__all__ = ["COSTS", "TIE", "overall", "verdict"]

COSTS: tuple[Cost, ...] = get_args(Cost)
#: Shares that differ by less are within noise: ceilings, which divide the experts, are known no better. Where so many
#: standard errors of the run's mean step are more, they count.
TIE, ERRORS = 0.05, 3.0
COUNTED = "Only counted: no expert was computed, so nothing says what a step's time goes to."


def verdict(run: Run, tried: Sequence[Mapping[str, Any]] = (), device: str = "cpu") -> Verdict:
    """Of a run with times; ``tried`` configurations are not advised, nor what a ``device`` of that kind can't run.
    Raises `ValueError` for one without times."""
    if run.steps is None:
        raise ValueError(f"{run.variant} at {run.condition} has no times, so nothing can be said about them")
    shares = _shares(run)
    origin: Origin = "measured" if run.exchange is None else run.exchange.network
    counted = run.exchange is not None and run.exchange.count_only
    error = run.noise.spread / sqrt(run.noise.samples) if run.noise and run.noise.samples else 0.0
    dominant: Dominant = "undecided" if counted else _dominant(shares, max(TIE, ERRORS * error))
    return Verdict(
        dominant=dominant,
        shares=shares,
        sentence=COUNTED if counted else _sentence(dominant, shares, origin, knows_floor=_by_memory(run) is not None),
        origin=origin,
        memory_bytes=run.fit["deployment"].total_bytes,
        device_bytes=run.fit["measurement"].device_bytes,
        advice=[] if counted else advise(run, shares, tried, device),
    )


def overall(runs: Sequence[Run], device: str = "cpu") -> Verdicts | None:
    """That of the first variant with times over its conditions, and that of every run with times; None without any."""
    timed = [run for run in runs if run.steps is not None]
    if not timed:
        return None
    tried = [flat(run.spec.model_dump(mode="json")) for run in runs]
    each = {f"{run.variant} at {run.condition}": verdict(run, tried, device) for run in timed}
    own = {run.condition: each[f"{run.variant} at {run.condition}"] for run in timed if run.variant == timed[0].variant}
    whole = next(iter(own.values())) if len(own) == 1 else _over_conditions(own)
    return Verdicts(**dict(whole), runs=each)


def _over_conditions(verdicts: Mapping[str, Verdict]) -> Verdict:
    """Of one variant, ``verdicts`` by condition."""
    each = list(verdicts.values())
    shares = {cost: float(np.mean([one.shares[cost] for one in each])) for cost in COSTS}
    origin = max((one.origin for one in each), key=get_args(Origin).index)  # the least certain
    dominant, *others = dict.fromkeys(one.dominant for one in each)
    if others or dominant == "undecided":
        dominant = "undecided"
        text = f"undecided: {', '.join(f'{one.dominant} at {condition}' for condition, one in verdicts.items())}."
    else:
        text = f"{NAMES[dominant]} takes most at every corner: {shares[dominant]:.0%} on average."
    return Verdict(
        dominant=dominant,
        shares=shares,
        sentence=_capital(f"{_network(origin)}{text}"),
        origin=origin,
        memory_bytes=max(one.memory_bytes for one in each),
        device_bytes=each[0].device_bytes,
        advice=list({advice.field: advice for one in each for advice in one.advice}.values())[:MOST_ADVICE],
    )


def _shares(run: Run) -> dict[Cost, float]:
    """Of the mean step; they sum to 1."""
    assert run.steps is not None
    by_memory = _by_memory(run)
    streaming = 0.5 if by_memory is None else by_memory
    time = dict.fromkeys(COSTS, 0.0)
    for leaf, times in model_leaves(run.steps, run.scale).items():
        total, stage = float(times.sum()), top(leaf)
        if stage == "experts":
            time["weights"] += streaming * total
            time["compute"] += (1 - streaming) * total
        elif travels(leaf) or stage == "dispatch":
            time["communication"] += total
        elif stage == IDLE:
            time["waiting"] += total
        elif stage in ("attention", "other"):
            time["attention"] += total
        else:
            time["overhead"] += total
    whole = sum(time.values())
    return {cost: own / whole if whole else 0.0 for cost, own in time.items()}


def _by_memory(run: Run) -> float | None:
    limit = run.summary.limits.get("experts") if run.summary else None
    return limit.by_memory if limit else None


def _dominant(shares: Mapping[Cost, float], tie: float) -> Dominant:
    first, second = sorted(COSTS, key=lambda cost: shares[cost], reverse=True)[:2]
    return first if shares[first] - shares[second] >= tie else "undecided"


def _sentence(dominant: Dominant, shares: Mapping[Cost, float], origin: Origin, knows_floor: bool) -> str:
    first, second = sorted(COSTS, key=lambda cost: shares[cost], reverse=True)[:2]
    ahead, behind = (f"{NAMES[cost]} ({shares[cost]:.0%})" for cost in (first, second))
    if dominant == "undecided":
        text = f"{_network(origin)}undecided: {ahead} and {behind} of a step are within noise."
    else:
        text = f"{_network(origin)}{NAMES[first]} takes {shares[first]:.0%} of a step; next is {behind}."
    unknown = "" if knows_floor else " The machine's limits are not known, so weights and compute share the experts."
    return _capital(text) + unknown


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _network(origin: Origin) -> str:
    """What every share stands on where the network between the ranks was not measured."""
    if origin == "measured":
        return ""
    return f"with {'an' if origin == 'assumed' else 'a'} {origin} network, "
