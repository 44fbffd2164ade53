"""What routing came to, from a run's document to what is drawn; expected values worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.strategies import STRATEGIES
from tests.webapp.experiments import make
from webapp.experiments import routing
from webapp.experiments.routing import Bin


def read(**changes: Any) -> list[dict[str, Any]]:
    """What the section reads of each run of an experiment."""
    runs = make.result(make.experiment(**changes)).runs
    return [{name: run.model_dump(mode="json")[name] for name in routing.READ} for run in runs]


def section(runs: list[dict[str, Any]], by_corner: bool = False) -> routing.Section:
    found = routing.section(runs, ["1×16"], "1×16", by_corner)
    assert found is not None
    return found


def test_a_run_is_counted_up() -> None:
    row = section(read()[:1]).rows[0]
    assert row.name == "gate_up"
    assert row.load == [5, 3, *[0] * 62]
    assert row.experts_a_token == pytest.approx(8 / 5)  # 2 tokens with one expert, 3 with two
    assert row.active_experts == pytest.approx(0.8)  # of 320 experts in 5 steps, 4 had rows
    assert row.num_ranks == 1


def test_variants_or_corners_name_the_rows() -> None:
    assert [row.name for row in section(read()[:2]).rows] == ["gate_up", "none"]
    assert [row.name for row in section(read(vary=None), by_corner=True).rows] == ["1×16", "4×64"]
    assert section(read(vary=None), by_corner=True).corners == []


def test_runs_without_routing_are_left_out() -> None:
    runs = read()[:2]
    runs[0]["routing"] = None
    assert [row.name for row in section(runs).rows] == ["none"]
    runs[1]["routing"] = None
    assert routing.section(runs, ["1×16"], "1×16", by_corner=False) is None


def test_histograms_of_a_section_have_the_same_bins() -> None:
    runs = read()[:2]
    runs[1]["routing"] |= {"experts_per_token": [1, *[0] * 19, 3], "rows_per_expert": [0, 0, 0, 0, 64]}
    first, second = section(runs).rows
    assert [found.name for found in first.per_token] == [*map(str, range(17)), "17–20"]
    assert [found.share for found in first.per_token[:4]] == [0, 0.4, 0.6, 0]
    assert (second.per_token[0].share, second.per_token[-1].share) == (0.25, 0.75)
    assert [found.name for found in first.rows] == ["0", "1", "2–3", "4–7", "8–15"]
    assert [found.share for found in second.rows] == [0, 0, 0, 0, 1]


def test_bars_say_what_they_are_and_have_as_many_ticks_as_fit() -> None:
    runs = read()[:1]
    runs[0]["routing"] |= {"experts_per_token": [*[0] * 64, 5], "rows_per_expert": [*[0] * 11, 1]}
    row = section(runs).rows[0]
    assert [bar.tick for bar in row.per_token_bars if bar.tick] == ["0", "4", "8", "12", "64"]
    assert row.per_token_bars[-1].words == "100% of tokens get 33–64 experts"
    assert row.per_token_bars[1].words == "0.0% of tokens get 1 expert"
    assert [bar.tick for bar in row.row_bars] == ["0", "1", "", "4", "", "16", "", "64", "", "256", "", "1k"]
    assert row.row_bars[-1].words == "100% of experts compute 1,024–2,047 rows"
    assert [bar.tick for bar in section(read()[:1]).rows[0].row_bars] == ["0", "1", "2", "4"]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200), st.integers(0, 100))
def test_no_token_is_lost_between_bins(counts: list[int], more: int) -> None:
    bins = routing.per_token(counts, len(counts) - 1 + more)
    assert [found.low for found in bins[1:]] == [found.high + 1 for found in bins[:-1]]
    assert bins[-1].high >= len(counts) - 1 + more
    for found in bins:
        assert found.share * max(sum(counts), 1) == pytest.approx(sum(counts[found.low : found.high + 1]))


def test_tables_leave_out_what_is_empty_everywhere() -> None:
    (per_token, _), (rows, _) = section(read()[:2]).tables
    assert per_token == routing.Table(["1", "2"], [("gate_up", [0.4, 0.6]), ("none", [0.4, 0.6])])
    assert rows.bins == ["0", "1", "2–3", "4–7"]
    assert section(read()[:2]).experts[:3] == [(0, [5, 5]), (1, [3, 3]), (2, [0, 0])]


def test_the_map_says_in_words_what_it_shows() -> None:
    [map] = section(read()[:1]).rows[0].maps
    assert map.label == (
        "Load of 64 experts by step, gate_up at 1×16: the hottest has 40.0 times an even share, 62 get nothing."
    )
    assert map.caption == "64 experts, top to bottom; 5 steps, left to right, a column for each 3"
    assert map.levels.shape == (64, 2)
    assert map.levels[:2].tolist() == [[6, 0], [0, 6]]


def test_several_layers_have_a_map_of_their_own() -> None:
    runs = read()[:1]
    runs[0]["expert_assignments"] = [[4, 0, *[1] * 62], [1, 3, *[1] * 62]]
    by_step, by_layer = section(runs).rows[0].maps
    assert by_layer.caption == "64 experts, top to bottom; 2 layers, left to right"
    assert by_layer.label.endswith("the hottest has 2.42 times an even share, none get nothing.")  # 5 / (132 / 64)
    assert by_step.levels.shape == by_layer.levels.shape == (64, 2)


def test_many_cells_are_drawn_together() -> None:
    runs = read()[:1]
    over_time = np.ones((128, 512), int)
    over_time[:, 7] = 100
    runs[0]["routing"]["expert_assignments_over_time"] = over_time.tolist()
    [map] = section(runs).rows[0].maps
    assert map.levels.shape == (128, 64)
    assert (map.levels[1] == 6).all()  # experts 4 to 7: the hottest of them
    assert (map.levels[0] == 3).all()
    assert map.caption == (
        "512 experts, top to bottom, the hottest of each 4; 5 steps, left to right, a column for each 6"
    )


def test_only_so_many_rows_are_drawn() -> None:
    threads = {"field": "kernels.threads", "values": list(range(1, 11))}
    found = section(read(vary=threads)[:10])
    assert (len(found.rows), len(found.drawn)) == (10, 8)


@pytest.mark.parametrize(
    ("vary", "base", "names"),
    [
        ({"field": "routing.strategy", "values": list(STRATEGIES)}, "soft", {"expert_choice", "soft"}),
        ({"field": "routing", "values": [{"strategy": "soft", "top_k": 2}, {"top_k": 2}]}, "soft",
         {"strategy=soft top_k=2"}),
        ({"field": "kernels.fusion", "values": ["none", "gate_up"]}, "expert_choice", {"none", "gate_up"}),
        ({"field": "kernels.fusion", "values": ["none", "gate_up"]}, "hash", set()),
        (None, "soft", {"base"}),
        (None, "balanced", set()),
    ],
)  # fmt: skip
def test_variants_that_look_ahead_are_known_from_the_document(vary: Any, base: str, names: set[str]) -> None:
    asked = make.experiment(vary=vary, base={"model": "olmoe-1b-7b", "routing": {"strategy": base}})
    assert routing.non_causal(asked.document()) == names
    assert names <= {run.variant for run in asked.runs()}


def test_a_bin_of_one_number_is_named_by_it() -> None:
    assert (Bin(3, 3, 0.5).name, Bin(1024, 2047, 0.5).name) == ("3", "1,024–2,047")
