"""Charts of the library as data."""

from __future__ import annotations

import pytest

from webapp.traces import charts

NBSP = "\N{NO-BREAK SPACE}"


def test_a_bar_of_lengths_is_named_by_its_first_and_last() -> None:
    found = charts.length_bars({"edges": [2, 3, 4, 6, 1024, 1448], "counts": [5, 0, 7, 1, 2]}, "prompt")
    assert found["data"]["labels"] == ["2", "3", "4–5", "6–1,023", "1,024–1,447"]
    assert found["data"]["datasets"][0]["data"] == [5, 0, 7, 1, 2]
    assert found["options"]["scales"]["x"]["title"]["text"] == "prompt tokens"


def test_a_slot_of_arrivals_is_named_by_its_beginning() -> None:
    found = charts.arrival_bars({"width_s": 30.0, "counts": [3, 0, 1]})
    assert found["data"]["labels"] == [f"0{NBSP}s", f"30{NBSP}s", f"1{NBSP}min"]
    assert found["options"]["scales"]["x"]["title"]["text"] == f"since the first arrival, in slots of 30{NBSP}s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.02, "0.02 s"), (1e-6, "0.000001 s"), (2.5, "2.5 s"), (59, "59 s"), (60, "1 min"),
     (90, "1 min 30 s"), (3502, "58 min 22 s"), (7200, "2 h"), (172_800, "2 days")],
)  # fmt: skip
def test_a_time_in_a_trace_is_exact_below_an_hour(seconds: float, text: str) -> None:
    assert charts.slot(seconds).replace(NBSP, " ") == text


def test_layers_are_named_by_their_number_in_the_model() -> None:
    found = charts.imbalance_bars([0, 7, 15], [7.81, 3.2, 4.0])
    assert (found["data"]["labels"], found["data"]["datasets"][0]["data"]) == (["0", "7", "15"], [7.81, 3.2, 4.0])
    assert found["options"]["unit"] == "number"
