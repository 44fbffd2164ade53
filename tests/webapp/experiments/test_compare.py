"""Two runs: whether they may be compared, how, and in which words."""

from __future__ import annotations

import numpy as np
import pytest

from bench_worker.rotation import turns
from bench_worker.stats import BETWEEN_WINDOWS
from tests.webapp.experiments.measured import STEPS, USUAL, measured, summary
from webapp.experiments.compare import STEP, compare


def words(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_variants_of_one_experiment_are_paired_step_by_step() -> None:
    """10% less in every step, on a machine whose steps differ by 2%; ± 1.96 · 0.4%, which windows may differ by."""
    found = compare(measured(), measured("other", 0.9, id=2), STEP)
    assert found.found is not None
    assert found.found.ratio == pytest.approx(0.9, abs=0.0005)
    assert found.found.paired
    assert words(found.words) == "▼ 10% (9.3–10.7)"
    assert words(found.more).startswith("▼ 10% (9.3–10.7), 200 samples, paired, p < 0.001")
    assert found.css == "faster"


def test_runs_of_two_experiments_are_less_certain() -> None:
    found = compare(measured(), measured("other", 0.97, id=2, experiment=2), STEP)
    assert found.found is not None
    assert not found.found.paired
    assert (found.words, found.css) == ("~", "same")
    assert "unpaired" in found.more
    assert compare(measured(), measured("other", 0.97, id=2), STEP).css == "faster"


def test_what_the_second_in_a_step_gains_changes_nothing() -> None:
    """Each takes 8% longer where it runs first, for it finds the caches cold."""
    turn = turns(np.arange(STEPS), 2)
    base, other = (
        measured(name, id=2 + place, parts={STEP: USUAL * np.where(turn == place, 1.08, 1)})
        for place, name in enumerate(("base", "other"))
    )
    found = compare(base, other, STEP).found
    assert found is not None
    assert found.ratio == pytest.approx(1)
    assert found.standard_error == pytest.approx(BETWEEN_WINDOWS, rel=0.01)


def test_only_whole_rotations_count() -> None:
    """Of 200 steps in which three variants took turns, the last two are no whole rotation."""
    base, other = measured(interleaved=3), measured("other", id=2, interleaved=3)
    found = compare(base, other, STEP).found
    assert found is not None
    assert found.samples == 198


def test_a_truncated_run_is_compared_as_far_as_it_came() -> None:
    found = compare(measured(), measured("other", id=2, steps=100), STEP).found
    assert found is not None
    assert found.samples == 100


def test_few_steps_say_nothing() -> None:
    found = compare(measured(steps=6), measured("other", 0.5, id=2, steps=6), STEP)
    assert (found.words, found.css) == ("too few samples", "same")
    assert words(found.more) == "▼ 50%, but only 6 samples"


def test_other_traces_or_batches_have_no_ratio() -> None:
    base = measured()
    for other in (
        measured("other", id=2, condition=1),
        measured("other", id=2, spec={"workload.seed": 1}),
        measured("other", id=2, batches=base.batches | {"decode_tokens": np.full(STEPS, 2)}),
    ):
        found = compare(base, other, STEP)
        assert (found.found, found.words, found.more) == (None, "other batches", "")


def test_limits_of_latency_change_no_batch() -> None:
    limits = measured().spec.workload.limits.model_copy(update={"ttft_ms": 200.0})
    assert compare(measured(), measured("other", id=2, spec={"workload.limits": limits}), STEP).found


def test_steps_of_an_open_loop_have_no_ratio_and_their_requests_do() -> None:
    latencies = {"ttft_ms": (USUAL / 100).tolist()}
    base = measured(summary=summary(USUAL, rounds=1), requests=latencies)
    other = measured("other", id=2, summary=summary(USUAL, rounds=1), requests=latencies)
    assert compare(base, other, STEP).words == "in an open loop each has batches of its own"
    found = compare(base, other, "ttft_ms")
    assert found.found is not None
    assert (found.found.ratio, found.found.paired) == (1.0, False)


def test_requests_are_paired_one_by_one() -> None:
    """Of four requests the third has no time per output token, in both runs."""
    ours, theirs = {"tpot_ms": [1.0, 2.0, None, 4.0] * 20}, {"tpot_ms": [1.5, 3.0, None, 6.0] * 20}
    found = compare(measured(requests=ours), measured("other", id=2, requests=theirs), "tpot_ms").found
    assert found is not None
    assert (found.ratio, found.samples) == (pytest.approx(1.5), 60)


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [([], [], "no latencies"), ([1.0], [1.0, 2.0], "not the same requests finished"), ([None], [None], "no latencies"),
     ([0.0], [1.0], "takes no time")],
)  # fmt: skip
def test_what_has_no_ratio_says_why(ours: list[float], theirs: list[float], reason: str) -> None:
    base, other = measured(requests={"ttft_ms": ours}), measured("other", id=2, requests={"ttft_ms": theirs})
    assert compare(base, other, "ttft_ms").words == reason


def test_a_stage_of_one_alone_has_no_ratio() -> None:
    alone = measured(parts={STEP: USUAL, "attention": USUAL})
    assert compare(alone, measured("other", id=2), "attention").words == "no such stage in both"
