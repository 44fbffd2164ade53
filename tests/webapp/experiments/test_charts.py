"""Charts as data, and what is left out when there are too many points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from webapp.experiments import charts

ROWS = [("gate_up", {"experts": 6.0, "route": 1.0}), ("none", {"experts": 9.0, "idle": 0.5})]


def test_stage_bars_stack_every_stage_in_the_order_of_the_layer() -> None:
    config = charts.stage_bars(ROWS, "ms")
    assert config["type"] == "bar"
    assert config["data"] == {
        "labels": ["gate_up", "none"],
        "datasets": [
            {"label": "route", "data": [1.0, 0.0], "backgroundColor": "var(--stage-route)"},
            {"label": "experts", "data": [6.0, 9.0], "backgroundColor": "var(--stage-experts)"},
            {"label": "idle", "data": [0.0, 0.5], "backgroundColor": "hatched var(--stage-idle)"},
        ],
    }
    options = config["options"]
    assert (options["unit"], options["indexAxis"]) == ("ms", "y")
    assert options["scales"]["x"]["stacked"]
    assert options["scales"]["y"]["stacked"]


def test_shares_end_at_one() -> None:
    assert charts.stage_bars(ROWS, "percent")["options"]["scales"]["x"]["max"] == 1
    assert "max" not in charts.stage_bars(ROWS, "ms")["options"]["scales"]["x"]


def test_every_bar_has_its_label_while_there_is_room() -> None:
    skips = [
        charts.stage_bars(ROWS[:1] * count, "ms")["options"]["scales"]["y"]["ticks"]["autoSkip"]
        for count in (7, 20, 21)
    ]
    assert skips == [False, False, True]


def test_the_timeline_has_a_bar_a_step() -> None:
    config = charts.timeline([0, 1, 5], {"experts": [1.0, 2.0, 3.0], "other": [0.1, 0.1, 0.1]})
    assert config["data"]["labels"] == [0, 1, 5]
    assert [dataset["label"] for dataset in config["data"]["datasets"]] == ["experts", "other"]
    assert config["data"]["datasets"][0]["data"] == [1.0, 2.0, 3.0]


def test_few_points_are_all_kept() -> None:
    assert charts.keep_peaks([3.0, 1.0, 2.0], limit=3) == [0, 1, 2]
    assert charts.keep_peaks([], limit=3) == []


def test_of_every_stretch_the_largest_is_kept() -> None:
    assert charts.keep_peaks([1, 5, 2, 2, 9, 1], limit=3) == [1, 2, 4]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(1, 50))
def test_no_peak_is_lost_and_the_order_stays(values: list[float], limit: int) -> None:
    kept = charts.keep_peaks(values, limit)
    assert len(kept) == min(len(values), limit)
    assert kept == sorted(set(kept))
    assert max(values) == max(values[i] for i in kept)
