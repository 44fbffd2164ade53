"""What a step's time goes to, and what to try next. Pure; torch-free.

| cost | stages |
| --- | --- |
| weights, compute | ``experts``, divided as bandwidth and arithmetic set its floor (`Limit.by_memory`) |
| communication | ``dispatch`` and ``combine.transfer``: nothing hides them, so all of them is exposed |
| waiting | ``idle``: mean over the ranks |
| overhead | ``route``, ``permute``, and the rest of ``combine`` |
| attention | ``attention`` and ``other``: what no change of the MoE layers touches |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import get_args

import numpy as np

from bench_worker.advice import NAMES, advise
from bench_worker.result import Cost, Dominant, Origin, Run, Verdict, Verdicts
from bench_worker.scaling import IDLE, model_leaves, top

__all__ = ["COSTS", "TIE", "overall", "verdict"]

COSTS: tuple[Cost, ...] = get_args(Cost)
#: Shares that differ by less are within noise: ceilings, which divide the experts, are known no better. Where so many
#: standard errors of the run's mean step are more, they count.
TIE, ERRORS = 0.05, 3.0
TRANSFERS = ("dispatch", "combine.transfer")


def verdict(run: Run) -> Verdict:
    """Of a run with times. Raises `ValueError` for one without."""
    if run.steps is None:
        raise ValueError(f"{run.variant} at {run.condition} has no times, so nothing can be said about them")
    shares = _shares(run)
    origin: Origin = "measured" if run.exchange is None else run.exchange.network
    error = run.noise.spread / sqrt(run.noise.samples) if run.noise and run.noise.samples else 0.0
    dominant = _dominant(shares, max(TIE, ERRORS * error))
    return Verdict(
        dominant=dominant,
        shares=shares,
        sentence=_sentence(dominant, shares, origin, knows_floor=_by_memory(run) is not None),
        origin=origin,
        memory_bytes=run.fit["deployment"].total_bytes,
        device_bytes=run.fit["measurement"].device_bytes,
        advice=advise(run, shares),
    )


def overall(runs: Sequence[Run]) -> Verdicts | None:
    """That of the first variant with times over its conditions, and that of every run with times; None without any."""
    timed = [run for run in runs if run.steps is not None]
    if not timed:
        return None
    each = {f"{run.variant} at {run.condition}": verdict(run) for run in timed}
    own = {run.condition: each[f"{run.variant} at {run.condition}"] for run in timed if run.variant == timed[0].variant}
    if len(own) == 1:
        return Verdicts(**dict(next(iter(own.values()))), runs=each)
    shares = {cost: float(np.mean([one.shares[cost] for one in own.values()])) for cost in COSTS}
    found = {one.dominant for one in own.values()}
    first = next(iter(own.values()))
    dominant = found.pop() if len(found) == 1 else "undecided"
    if dominant == "undecided":
        where = ", ".join(f"{one.dominant} at {condition}" for condition, one in own.items())
        sentence = f"{_network(first.origin)}undecided: {where}."
    else:
        share = shares[dominant]
        sentence = f"{_network(first.origin)}{NAMES[dominant]} takes most at every corner: {share:.0%} on average."
    advice = {one.field: one for found_there in own.values() for one in found_there.advice}
    return Verdicts(
        **dict(first)
        | {
            "dominant": dominant,
            "shares": shares,
            "sentence": _capital(sentence),
            "memory_bytes": max(one.memory_bytes for one in own.values()),
            "advice": list(advice.values())[:3],
        },
        runs=each,
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
        elif leaf in TRANSFERS or stage == "dispatch":
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
