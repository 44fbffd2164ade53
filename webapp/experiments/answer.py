"""The one sentence at the top: what came out, from the runs' summaries alone (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bench_worker.kernel_report import Table
from bench_worker.result import Run, Summary
from bench_worker.strategies import STRATEGIES
from webapp.experiments.compare import BATCH, STEP, Measured
from webapp.experiments.compare_headline import headline, where
from webapp.experiments.compare_table import contenders, table
from webapp.experiments.origins import networks
from webapp.ui.formatting import duration_us, percent


def answer(runs: Sequence[Run]) -> str:
    """Which variant is fastest where and how certain that is, and the stage that takes most of a step."""
    timed = [(run, run.summary) for run in runs if run.summary is not None]
    if not timed:
        return "No run has times: every output differs from the reference."
    sentences = [_compared(timed) or _speed(timed), _stage(timed)]
    if len(timed) < len(runs):
        sentences.append(f"{len(runs) - len(timed)} of {len(runs)} runs gave a wrong result and have no times.")
    named = networks(run.origins.get("step_us", "") for run, _ in timed)
    sentences += [f"{words.capitalize()}." for _, words in named]
    return " ".join(sentences)


def answer_of_table(table: Table) -> str:
    """Which expert backend is fastest where, and how near the best ones come to the floor."""
    timed = [row for row in table.rows if row.experts_us is not None and row.backend != "auto"]
    if not timed:
        return "No expert backend can run here."
    sizes = list(dict.fromkeys(row.tokens for row in timed))
    best = [min((row for row in timed if row.tokens == size), key=lambda row: row.experts_us or 0) for size in sizes]
    backend, wins = Counter(row.backend for row in best).most_common(1)[0]
    at = "at every size" if wins == len(sizes) else f"at {wins} of {len(sizes)} sizes"
    shares = sorted(row.share for row in best if row.share is not None)
    low, high = percent(shares[0]), percent(shares[-1])
    reached = low if low == high else f"{low} to {high}"
    return f"{backend} is the fastest {at}. The fastest reach {reached} of the floor."


def biggest_stage(summary: Summary) -> tuple[str, float]:
    """The stage with the largest share of a step, and that share."""
    return max(summary.stage_share.items(), key=lambda item: item[1])


def _speed(timed: Sequence[tuple[Run, Summary]]) -> str:
    conditions = list(dict.fromkeys(run.condition for run, _ in timed))
    variants = {run.variant for run, _ in timed}
    if len(variants) == 1:
        ordered = sorted(timed, key=lambda pair: pair[1].step_us.p50)
        (low_run, low), (high_run, high) = ordered[0], ordered[-1]
        shortest = f"{duration_us(low.step_us.p50)} at {low_run.condition}"
        if len(conditions) == 1:
            return f"A step takes {shortest} (median)."
        return f"A step takes {shortest} and {duration_us(high.step_us.p50)} at {high_run.condition} (medians)."
    fastest = Counter(
        min((pair for pair in timed if pair[0].condition == condition), key=lambda pair: pair[1].step_us.p50)[0].variant
        for condition in conditions
    )
    variant, wins = fastest.most_common(1)[0]
    at = where(wins, len(conditions))
    causal = next(STRATEGIES[run.spec.routing.strategy].causal for run, _ in timed if run.variant == variant)
    return f"{variant}{'' if causal else ' (non-causal)'} has the shortest median step {at}."


def _compared(timed: Sequence[tuple[Run, Summary]]) -> str | None:
    """The headline of the comparison with the first variant; None where nothing is certain."""
    beside = Counter(run.condition for run, _ in timed)
    measured = [
        Measured(
            id=place,
            experiment=0,
            title="",
            variant=run.variant,
            condition=run.condition,
            position=place,
            spec=run.spec,
            summary=summary,
            layer_scale=1,
            interleaved=beside[run.condition],
            parts={STEP: np.array(run.steps.step_us)},
            batches={name: np.array(getattr(run.steps, name)) for name in BATCH},
            overlap=run.routing.expert_overlap if run.routing else None,
        )
        for place, (run, summary) in enumerate(timed)
        if run.steps is not None
    ]
    found = contenders(measured)
    return headline(table(found, found[0])) if len(found) > 1 else None


def _stage(timed: Sequence[tuple[Run, Summary]]) -> str:
    biggest = [(run, *biggest_stage(summary)) for run, summary in timed]
    run, stage, share = max(biggest, key=lambda item: item[2])
    if len(biggest) == 1:
        return f"The largest part of it is {stage}: {percent(share)}."
    if len({stage for _, stage, _ in biggest}) > 1:
        return f"The largest part of one is {stage}: {percent(share)} at {run.condition}."
    low, high = percent(min(share for _, _, share in biggest)), percent(share)
    return f"The largest part is {stage} everywhere: {low if low == high else f'{low} to {high}'}."
