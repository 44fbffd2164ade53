"""The sentence at the top."""

from __future__ import annotations

from typing import Any

from bench_worker.result import Run
from tests.webapp.experiments import make
from webapp.experiments.answer import answer

ONE = {"vary": None, "conditions": [{"concurrency": 1, "prompt_tokens": 16}]}


def runs(*steps_ms: float, shares: list[dict[str, float]] | None = None, **changes: Any) -> list[Run]:
    """The runs of an experiment with the given median steps, in the order of its plan."""
    found = make.result(make.experiment(**changes)).runs
    for place, (run, ms) in enumerate(zip(found, steps_ms, strict=True)):
        assert run.summary is not None
        run.summary.step_us.p50 = ms * 1000
        run.summary.stage_share = shares[place] if shares else {"experts": 0.72, "route": 0.28}
    return found


def words(found: list[Run]) -> str:
    return answer(found).replace("\N{NO-BREAK SPACE}", " ")


def test_one_run_says_its_step_and_its_largest_stage() -> None:
    assert words(runs(15.2, **ONE)) == "A step takes 15.2 ms at 1×16 (median). The largest part of it is experts: 72%."


def test_several_corners_of_one_variant_say_the_shortest_and_the_longest() -> None:
    assert words(runs(15.2, 620, vary=None)) == (
        "A step takes 15.2 ms at 1×16 and 620 ms at 4×64 (medians). The largest part is experts everywhere: 72%."
    )


def test_a_winner_that_looks_ahead_is_marked() -> None:
    found = runs(2, 1, vary={"field": "routing.strategy", "values": ["hash", "soft"]}, conditions=ONE["conditions"])
    assert words(found).startswith("soft (non-causal) has the shortest median step at the one corner measured.")


def test_a_variant_that_wins_everywhere_is_named() -> None:
    """In the order of the plan: gate_up and none at 1×16, then at 4×64."""
    shares = [{"experts": share, "route": 1 - share} for share in (0.58, 0.6, 0.71, 0.65)]
    assert words(runs(3, 4, 30, 40, shares=shares)) == (
        "gate_up has the shortest median step at every corner. The largest part is experts everywhere: 58% to 71%."
    )


def test_a_divided_win_says_where_the_largest_share_is() -> None:
    shares = [{"experts": 0.6, "attention": 0.4}, {"experts": 0.7, "attention": 0.3}] * 2
    shares[3] = {"experts": 0.2, "attention": 0.8}
    assert words(runs(3, 4, 40, 30, shares=shares)) == (
        "gate_up has the shortest median step at 1 of 2 corners. The largest part of one is attention: 80% at 4×64."
    )


def test_an_assumed_network_is_named_in_the_answer() -> None:
    found = [make.on_ranks(run, [0, 0, 1, 1], network="assumed") for run in runs(15.2, **ONE)]
    assert words(found).endswith(" Measured compute, modelled network, assumed from datasheets.")


def test_wrong_results_are_counted_and_give_no_times() -> None:
    asked = make.experiment()
    assert answer(make.result(asked, wrong=frozenset(["none"])).runs).endswith(
        "2 of 4 runs gave a wrong result and have no times."
    )
    everything = make.result(asked, wrong=frozenset(["none", "gate_up"])).runs
    assert answer(everything) == "No run has times: every output differs from the reference."


def test_a_difference_that_is_certain_is_said_with_its_size() -> None:
    """gate_up takes 1 to 1.4 and none 2 to 2.4, so 2.2 / 1.2 at the median."""
    found = make.result(make.experiment(conditions=ONE["conditions"]), num_steps=60).runs
    assert words(found).startswith("gate_up is fastest at the one corner measured: none is ▲ 83% (")
