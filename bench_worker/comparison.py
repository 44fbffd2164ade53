"""Every variant of a result against its first one, quantity by quantity. Pure; torch-free.

``S`` steps. How sure a ratio is, `bench_worker.stats` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np

from bench_worker.findings import Comparison, RunComparison
from bench_worker.result import Run
from bench_worker.rotation import turns, whole_rotations
from bench_worker.scaling import model_leaves, with_stages
from bench_worker.stats import Turns, compare_paired, compare_unpaired, geometric_mean, holm, middle

__all__ = ["compare_all", "compare_runs", "compare_times", "times_of"]

#: A stage is to blame if at least this part of the step's change lies in it.
MOST = 0.5
#: Latencies that every request has one of.
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")


def compare_all(runs: Sequence[Run]) -> list[RunComparison]:
    """Every run against the first variant's under the same condition, and the geometric means over the conditions.
    Each quantity is corrected for the number of contenders. Runs without times are left out.

    ``runs`` stand condition by condition, as in a result.
    """
    timed = [run for run in runs if run.steps is not None]
    found: list[RunComparison] = []
    for _, of_condition in groupby(timed, key=lambda run: run.condition):
        base, *others = of_condition
        if base.variant == runs[0].variant:
            found += _corrected([compare_runs(base, other, rotation=1 + len(others)) for other in others])
    return found + _corrected(list(_means(found)))


def compare_runs(base: Run, contender: Run, rotation: int) -> RunComparison:
    """Two runs of one condition and experiment that have times. ``rotation``: how many variants took turns.

    Variants of an open loop did not: they had batches of their own, so only their requests are compared. A stage that
    took no time in some step has no ratio.
    """
    assert base.steps is not None
    assert base.summary is not None
    quantities: dict[str, Comparison] = {}
    cause = None
    interleaved = base.summary.rounds is None
    if interleaved:
        index = np.array(base.steps.index)
        kept = whole_rotations(index, rotation)
        ours, theirs = ({name: times[kept] for name, times in times_of(run).items()} for run in (base, contender))
        quantities, cause = compare_times(ours, theirs, turns(index[kept], rotation))
    quantities |= _latencies(base, contender, interleaved)
    return RunComparison(
        base=base.variant,
        contender=contender.variant,
        condition=base.condition,
        quantities=quantities,
        cause=cause,
    )


def times_of(run: Run) -> dict[str, np.ndarray]:
    """Times [S] in µs of ``run``, which has some: the whole-model step, a MoE layer, and each stage of the whole-model
    step with its parts."""
    assert run.steps is not None
    whole = {"step_us": np.array(run.steps.step_us), "layer_us": np.array(run.steps.layer_us)}
    return whole | with_stages(model_leaves(run.steps, run.scale))


def compare_times(
    base: Mapping[str, np.ndarray], contender: Mapping[str, np.ndarray], turn: Turns
) -> tuple[dict[str, Comparison], str | None]:
    """Every quantity that both have in all steps, and the stage to blame; times [S] as `times_of` gives them, of the
    steps of whole rotations, and their ``turn`` [S] as `bench_worker.rotation.turns` gives it."""
    quantities = {
        name: compare_paired(ours, contender[name], turn)
        for name, ours in base.items()
        if name in contender and ours.size and ours.all() and contender[name].all()
    }
    return quantities, _blamed(quantities, base, contender, turn)


def _blamed(
    quantities: Mapping[str, Comparison],
    base: Mapping[str, np.ndarray],
    contender: Mapping[str, np.ndarray],
    turn: Turns,
) -> str | None:
    """The stage that a change of the step is to be blamed on: the one that changed most, in the same direction and for
    certain, if that is at least `MOST` of the change."""
    step = quantities.get("step_us")
    if step is None or step.verdict not in ("faster", "slower"):
        return None
    sign = 1 if step.verdict == "slower" else -1
    changes = {
        stage: sign * middle((contender[stage] - base[stage]) / base["step_us"], turn)
        for stage, one in quantities.items()
        if stage not in ("step_us", "layer_us") and "." not in stage and one.verdict == step.verdict
    }
    stage = max(changes, key=lambda name: changes[name], default=None)
    return stage if stage is not None and changes[stage] >= MOST * abs(step.ratio - 1) else None


def _latencies(base: Run, contender: Run, interleaved: bool) -> dict[str, Comparison]:
    """Request by request: both served the same ones."""
    ours, theirs = base.requests, contender.requests
    found: dict[str, Comparison] = {}
    if ours is None or theirs is None or len(ours.e2e_ms) != len(theirs.e2e_ms):
        return found
    for metric in LATENCIES:
        pairs = zip(getattr(ours, metric), getattr(theirs, metric), strict=True)
        both = np.array([pair for pair in pairs if None not in pair], float).reshape(-1, 2)
        if both.size and both.all():
            one, other = both.T
            found[metric] = compare_paired(one, other) if interleaved else compare_unpaired(one, other)
    return found


def _corrected(comparisons: list[RunComparison]) -> list[RunComparison]:
    """For the number of contenders that stand against one base: each quantity by itself."""
    changed: list[dict[str, Comparison]] = [dict(one.quantities) for one in comparisons]
    for name in dict.fromkeys(name for one in comparisons for name in one.quantities):
        having = [quantities for quantities in changed if name in quantities]
        for quantities, one in zip(having, holm([each[name] for each in having]), strict=True):
            quantities[name] = one
    return [
        one.model_copy(update={"quantities": quantities, "cause": one.cause if _changed(quantities) else None})
        for one, quantities in zip(comparisons, changed, strict=True)
    ]


def _changed(quantities: Mapping[str, Comparison]) -> bool:
    return "step_us" in quantities and quantities["step_us"].verdict in ("faster", "slower")


def _means(comparisons: Sequence[RunComparison]) -> Iterable[RunComparison]:
    """One for each contender that stands under several conditions, of the quantities that it has under all."""
    for contender in dict.fromkeys(one.contender for one in comparisons):
        own = [one for one in comparisons if one.contender == contender]
        if len(own) < 2:
            continue
        means = {
            name: mean
            for name in own[0].quantities
            if all(name in one.quantities for one in own)
            if (mean := geometric_mean([one.quantities[name] for one in own])) is not None
        }
        yield RunComparison(base=own[0].base, contender=contender, condition=None, quantities=means)
