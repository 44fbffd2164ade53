"""What comes down from an experiment's page holds the page's numbers."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from bench_worker.perfetto import trace
from bench_worker.result import Result
from tests.webapp.experiments import make
from tests.webapp.experiments.rows import done, measured_kernels, put, run, text_of
from webapp.experiments import export, export_tables
from webapp.ui import formatting

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


def read_csv(response: Any) -> list[dict[str, str]]:
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def shown(row: dict[str, str], column: str) -> str:
    """A cell as a page writes it."""
    if not row[column]:
        return formatting.MISSING
    value = float(row[column])
    unit = column.rpartition("_")[2]
    write = {"us": formatting.duration_us, "ms": formatting.duration_ms, "share": formatting.percent,
             "model": lambda times: f"×{times:.0f}"}  # fmt: skip
    return write.get(unit, formatting.number)(value).replace(formatting.NBSP, " ")


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("runs", ["step_p50_us", "error", "allowed_error", "stages_over_whole_layer", "expert_load_max_over_mean",
                  "spread_share"]),
        ("stages", ["mean_ms", "share"]),
    ],
)  # fmt: skip
def test_every_number_of_a_table_stands_on_the_page(
    signed_in: Any, member: Any, table: str, columns: list[str]
) -> None:
    row = done(member)
    page = text_of(signed_in.get(row.get_absolute_url())).replace(formatting.NBSP, " ")
    rows = read_csv(signed_in.get(f"{row.get_absolute_url()}tables/?table={table}"))
    assert len({(each["variant"], each["corner"]) for each in rows}) == 4
    for each in rows:
        for column in columns:
            assert shown(each, column) in page, (each, column)


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("layer", ["median_us", "times_in_the_model", "step_share", "floor_us", "floor_share"]),
        ("latencies", ["p50_ms", "p90_ms", "p95_ms", "p99_ms", "mean_ms", "samples"]),
    ],
)
def test_every_number_of_one_run_stands_on_its_page(
    signed_in: Any, member: Any, table: str, columns: list[str]
) -> None:
    row = done(member)
    rows = read_csv(signed_in.get(f"{row.get_absolute_url()}tables/?table={table}"))
    for stored in row.runs.all():
        page = text_of(signed_in.get(f"{row.get_absolute_url()}?run={stored.position}")).replace(formatting.NBSP, " ")
        own = [each for each in rows if (each["variant"], each["corner"]) == (stored.variant, stored.condition)]
        assert own
        for each in own:
            for column in columns:
                assert shown(each, column) in page, (each, column)


def test_the_parts_of_a_step_sum_to_it(signed_in: Any, member: Any) -> None:
    row = done(member)
    rows = read_csv(signed_in.get(f"{row.get_absolute_url()}tables/?table=stages"))
    for variant, corner in {(each["variant"], each["corner"]) for each in rows}:
        own = {e["stage"]: float(e["mean_ms"]) for e in rows if (e["variant"], e["corner"]) == (variant, corner)}
        assert own.pop("step") == pytest.approx(sum(own.values()))


def test_json_holds_the_rows_of_all_tables(signed_in: Any, member: Any) -> None:
    row = done(member)
    response = signed_in.get(f"{row.get_absolute_url()}tables/")
    document = json.loads(response.content)
    assert (document["experiment"], document["title"]) == (row.pk, row.title)
    assert list(document["tables"]) == list(export_tables.TABLES)
    for name, rows in document["tables"].items():
        written = read_csv(signed_in.get(f"{row.get_absolute_url()}tables/?table={name}"))
        assert [{c: "" if v is None else str(v) for c, v in each.items()} for each in rows] == [
            {column: each[column] for column in own} for each, own in zip(written, rows, strict=True)
        ]
        assert all(set(each) <= set(export_tables.TABLES[name][0]) for each in rows)


def test_a_run_without_times_has_its_check_and_nothing_else(signed_in: Any, member: Any) -> None:
    row = done(member, wrong=frozenset(["none"]))
    tables = json.loads(signed_in.get(f"{row.get_absolute_url()}tables/").content)["tables"]
    assert [run["status"] for run in tables["runs"]] == ["ok", "wrong result", "ok", "wrong result"]
    assert "step_p50_us" not in tables["runs"][1]
    assert {each["variant"] for name in ("stages", "layer", "latencies") for each in tables[name]} == {"gate_up"}


def test_the_tables_take_a_constant_number_of_queries(
    signed_in: Any, member: Any, django_assert_num_queries: Any
) -> None:
    row = done(member)
    with django_assert_num_queries(4):  # session, member, experiment, runs
        signed_in.get(f"{row.get_absolute_url()}tables/")


def test_an_unknown_table_is_named(signed_in: Any, member: Any) -> None:
    response = signed_in.get(f"{done(member).get_absolute_url()}tables/?table=stage")
    assert response.status_code == 422
    assert response.text == (
        "table: 'stage' is not one of runs, stages, layer, latencies (did you mean stages?)\n"
    )  # fmt: skip


def test_steps_of_a_run_come_down_as_a_trace(signed_in: Any, member: Any) -> None:
    row = done(member)
    response = signed_in.get(f"{row.get_absolute_url()}trace/?run=2&steps=1,3-4")
    measured = make.result(make.experiment()).runs[2]
    assert json.loads(response.content) == json.loads(json.dumps(trace(measured, "1,3-4")))
    assert response["Content-Disposition"] == f'attachment; filename="trace-{row.pk}-run-2.json"'


def test_a_trace_without_a_choice_is_of_the_first_run_with_times(signed_in: Any, member: Any) -> None:
    row = done(member, wrong=frozenset(["gate_up"]))
    document = json.loads(signed_in.get(f"{row.get_absolute_url()}trace/").content)
    assert document["otherData"]["variant"] == "none"
    assert len([event for event in document["traceEvents"] if event.get("cat") == "step"]) == 5


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("steps=9", 422, "steps: 9 is not within the run's steps, which are 0 to 4"),
        ("steps=x", 422, "steps: 'x' names no steps"),
        ("run=x", 422, "run: 'x' is not the place of a run; it must be a number from 0 up"),
        ("run=4", 404, ""),
        ("run=123456", 404, ""),
        (f"run={'9' * 18}", 422, "run: '999999999999999999' is not"),
    ],
)
def test_a_trace_of_what_is_not_there_is_refused(
    signed_in: Any, member: Any, query: str, status: int, said: str
) -> None:
    response = signed_in.get(f"{done(member).get_absolute_url()}trace/?{query}")
    assert response.status_code == status
    assert said in response.text


@pytest.mark.parametrize("what", ["tables", "trace"])
def test_there_are_no_numbers_before_the_end_nor_of_a_table_of_kernels(signed_in: Any, member: Any, what: str) -> None:
    kernels = measured_kernels(member)
    for row in (kernels, run(member), put(member)):
        assert signed_in.get(f"{row.get_absolute_url()}{what}/").status_code == 404


def test_an_experiment_without_times_has_no_trace(signed_in: Any, member: Any) -> None:
    row = done(member, wrong=frozenset(["gate_up", "none"]))
    assert signed_in.get(f"{row.get_absolute_url()}trace/").status_code == 404


def test_the_page_offers_them(signed_in: Any, member: Any) -> None:
    kernels = measured_kernels(member)
    row = done(member)
    page = signed_in.get(row.get_absolute_url()).text
    assert all(f'href="{row.get_absolute_url()}tables/?table={name}"' in page for name in export_tables.TABLES)
    assert f'action="{row.get_absolute_url()}trace/"' in page
    for other in (kernels, put(member)):
        assert "tables/" not in signed_in.get(other.get_absolute_url()).text


def test_a_run_comes_back_as_it_was_measured(member: Any) -> None:
    row = done(member)
    whole = export.result_of(row)
    assert isinstance(whole, Result)
    assert [export.run_of(stored) for stored in row.runs.all()] == whole.runs
