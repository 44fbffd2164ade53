"""Every step and every request of one run: columns, passes, and the requests over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench_worker.result import Run, Steps
from tests.webapp.experiments import make
from webapp.experiments import run_tables
from webapp.ui.tables import Column

MS = "\N{NO-BREAK SPACE}ms"


def run() -> Run:
    return make.result(make.experiment()).runs[0]


def requests(**changes: Any) -> dict[str, Any]:
    """Two passes of two requests: request 1 waits 2 ms and is preempted 5 ms after its arrival."""
    columns = {
        "arrival_ms": [0.0, 1.0, 0.0, 1.0], "ttft_ms": [2.0, 4.0, 2.0, 4.0], "tpot_ms": [1.0, None, 1.0, None],
        "e2e_ms": [4.0, 9.0, 4.0, 9.0], "prompt_tokens": [16, 8, 16, 8], "output_tokens": [3, 1, 3, 1],
        "request": [0, 1, 0, 1], "wait_ms": [0.0, 2.0, 0.0, 2.0], "preempted_ms": [[], [5.0], [], [5.0]],
    }  # fmt: skip
    return columns | changes


def shown(columns: list[Column], place: int) -> dict[str, str]:
    return {column.title: column.show(float(column.values[place])) for column in columns}


def columns_of(**changes: Any) -> list[Column]:
    """Of the steps of a run, with ``changes`` to them."""
    steps, scale = run().steps, run().scale
    assert steps
    return run_tables.step_columns(steps.model_copy(update=changes), scale)


def test_a_step_tells_what_it_computed_and_where_its_time_went() -> None:
    steps, columns = run().steps, columns_of()
    assert steps
    assert [column.title for column in columns] == [
        "Step", "Start", "Prefill", "Decode", "Assignments", "Time",
        "route", "permute", "experts", "combine", "attention", "other",
    ]  # fmt: skip
    assert list(shown(columns, 0).values())[:5] == ["0", f"0{MS[:1]}µs", "16", "0", "8"]
    total = sum(column.values for column in columns[6:])
    assert total == pytest.approx(np.array(steps.step_us) / 1000)
    assert columns[5].values == pytest.approx(np.array(steps.step_us) / 1000)


def test_steps_begin_one_after_the_other_and_each_pass_at_nothing() -> None:
    columns = {column.key: column for column in columns_of(index=[0, 1, 0, 1, 2], step_us=[1e3, 2e3, 4e3, 8e3, 1e3])}
    assert columns["start"].values.tolist() == [0, 1, 0, 4, 12]
    assert columns["pass"].values.tolist() == [1, 1, 2, 2, 2]


def test_an_open_loop_tells_when_its_steps_began() -> None:
    columns = {column.key: column for column in columns_of(start_us=[0.0, 5e3, 6e3, 9e3, 12e3])}
    assert columns["start"].values.tolist() == [0, 5, 6, 9, 12]


def test_drops_and_idle_time_have_a_column_where_there_are_any() -> None:
    assert {"dropped", "idle"}.isdisjoint(column.key for column in columns_of())
    steps, scale = run().steps, run().scale
    assert isinstance(steps, Steps)
    rank = steps.ranks[0].model_copy(update={"idle_us": [0.0, 500.0, 0.0, 0.0, 0.0]})
    steps = steps.model_copy(update={"dropped": [0, 3, 0, 0, 0], "ranks": [rank]})
    scale = scale.model_copy(update={"counts": scale.counts | {"idle": 1}})
    columns = {column.key: column for column in run_tables.step_columns(steps, scale)}
    assert columns["dropped"].values.tolist() == [0, 3, 0, 0, 0]
    assert columns["idle"].values.tolist() == [0, 0.5, 0, 0, 0]


def test_a_request_tells_what_it_asked_for_and_got() -> None:
    columns = run_tables.request_columns(requests())
    assert shown(columns, 3) == {
        "Pass": "2", "Request": "1", "Arrival": f"1.00{MS}", "Prompt tokens": "8", "Output tokens": "1",
        "Waited": f"2.00{MS}", "TTFT": f"4.00{MS}", "TPOT": "–", "End to end": f"9.00{MS}", "Preempted": "1",
    }  # fmt: skip
    assert shown(columns, 0)["Preempted"] == "–"


def test_a_single_pass_needs_no_column() -> None:
    once = {name: values[:2] for name, values in requests().items()}
    assert "Pass" not in shown(run_tables.request_columns(once), 0)


def test_results_from_before_waiting_was_recorded_have_fewer_columns() -> None:
    old = requests(request=None, wait_ms=None, preempted_ms=None)
    columns = run_tables.request_columns(old)
    assert {"Pass", "Waited", "Preempted"}.isdisjoint(shown(columns, 0))
    assert shown(columns, 3)["Request"] == "3"
    drawn = {one["label"]: one["data"] for one in run_tables.over_time(old, [1])["data"]["datasets"]}
    assert drawn == {"waiting": [[1, 1]], "prefill": [[1, 5]], "decode": [[5, 10]]}


def test_a_request_waits_then_prefills_then_decodes() -> None:
    once = {name: values[:2] for name, values in requests().items()}
    config = run_tables.over_time(once, [1, 0])
    assert config["data"]["labels"] == ["1", "0"]
    drawn = {one["label"]: one["data"] for one in config["data"]["datasets"]}
    assert drawn == {
        "preempted": [{"x": 6.0, "y": "1"}],
        "waiting": [[1, 3], [0, 0]],
        "prefill": [[3, 5], [0, 2]],
        "decode": [[5, 10], [2, 4]],
    }
    assert config["options"]["scales"]["x"]["min"] == 0


def test_the_same_request_of_two_passes_is_told_apart() -> None:
    config = run_tables.over_time(requests(), [1, 3])
    assert config["data"]["labels"] == ["1, pass 1", "1, pass 2"]
    assert [cross["y"] for cross in config["data"]["datasets"][0]["data"]] == ["1, pass 1", "1, pass 2"]


def test_without_a_preemption_there_is_no_sign_for_it() -> None:
    config = run_tables.over_time(requests(), [0])
    assert [one["label"] for one in config["data"]["datasets"]] == list(run_tables.PHASES)
