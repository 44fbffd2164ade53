"""The page of one run: its requests over time and its steps, sorted and paged by the address."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.webapp.experiments import make, rows
from webapp.experiments import ingest, queue
from webapp.experiments.models import Experiment, Run
from webapp.ui.tables import PER_PAGE

pytestmark = pytest.mark.django_db


def with_steps(author: Any, num_steps: int) -> Experiment:
    row = rows.run(author)
    queue.begin_ingest(queue.fence_of(row))
    ingest.ingest(queue.fence_of(row), make.result(make.experiment(), num_steps=num_steps), row.machine)
    return row


def address(row: Experiment, position: int = 1) -> str:
    return f"{row.get_absolute_url()}runs/{position}/"


def step_numbers(response: Any) -> list[str]:
    return [cells[0] for cells, _ in response.context["step_rows"]]


def test_it_shows_every_request_and_every_step(signed_in: Any, member: Any) -> None:
    row = rows.done(member)
    response = signed_in.get(address(row))
    said = rows.text_of(response)
    assert rows.title_of(response) == "none at 1×16 · Fusion · Moescope"
    assert "Requests over time from arrival to the last token; 2 finished" in said
    assert "behind the p95 of TTFT (1) behind the p95 of TPOT (2)" in said
    assert step_numbers(response) == ["0", "1", "2", "3", "4"]
    assert [[tail.short for tail in marks] for _, marks in response.context["step_rows"]] == [
        ["TTFT"], ["TPOT"], ["TPOT"], [], [],
    ]  # fmt: skip


def test_the_address_sorts_by_any_column(signed_in: Any, member: Any) -> None:
    row = rows.done(member)  # each step is slower than the one before
    response = signed_in.get(f"{address(row)}?sort=-time&by=-e2e")
    assert step_numbers(response) == ["4", "3", "2", "1", "0"]
    page = response.content.decode()
    assert re.search(r'aria-sort="descending"><a href="\?by=-e2e&amp;sort=time#steps">Time</a>', page)
    assert re.search(r'aria-sort="descending"><a href="\?sort=-time&amp;by=e2e#requests">End to end</a>', page)
    for head in response.context["steps"].heads:
        assert signed_in.get(address(row) + head.link).status_code == 200


def test_steps_come_page_by_page(signed_in: Any, member: Any) -> None:
    row = with_steps(member, PER_PAGE + 3)
    response = signed_in.get(f"{address(row)}?page=2&sort=step")
    assert step_numbers(response) == ["50", "51", "52"]
    assert "Before page 2 of 2, 53 steps" in rows.text_of(response)
    assert '<a href="?sort=step&amp;page=1#steps" rel="prev">' in response.content.decode()


def test_only_the_steps_behind_a_p95(signed_in: Any, member: Any) -> None:
    response = signed_in.get(f"{address(rows.done(member))}?behind=tpot_ms&sort=-time")
    assert step_numbers(response) == ["2", "1"]
    assert "Time per output token: prefill of request 1 in the way." in rows.text_of(response)


def test_nonsense_in_the_address_shows_everything(signed_in: Any, member: Any) -> None:
    response = signed_in.get(f"{address(rows.done(member))}?behind=x&sort=x&page=x&by=x&part=99")
    assert step_numbers(response) == ["0", "1", "2", "3", "4"]


def test_a_run_that_is_not_there_or_was_not_timed_has_no_page(signed_in: Any, member: Any) -> None:
    row = rows.done(member, wrong=frozenset(["none"]))
    assert signed_in.get(address(row, 0)).status_code == 200
    assert signed_in.get(address(row, 1)).status_code == 404  # wrong result
    assert signed_in.get(address(row, 9)).status_code == 404


def test_only_what_belongs_to_the_run_is_read(signed_in: Any, member: Any) -> None:
    row = rows.done(member)
    Run.objects.exclude(position=1).update(requests={"broken": True})
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert signed_in.get(address(row)).status_code == 200
    read = "\n".join(query["sql"] for query in queries)
    assert "itl_ms" not in read
    assert f'"run_id" IN ({row.runs.get(position=1).pk})' in read
    assert '"experiments_run"."requests",' not in read


def test_without_latencies_it_says_why(signed_in: Any, member: Any) -> None:
    row = rows.done(member)
    run = row.runs.get(position=1)
    run.requests = None
    run.save()
    assert "No request finished within the time of the experiment." in rows.text_of(signed_in.get(address(row)))
    run.summary["output_tokens_per_s"] = None
    run.save()
    assert "attention was not measured, so there is no whole step." in rows.text_of(signed_in.get(address(row)))


def test_what_an_older_result_does_not_tell_is_said(signed_in: Any, member: Any) -> None:
    row = rows.done(member)
    assert "its waiting counts as prefill" not in rows.text_of(signed_in.get(address(row)))
    run = row.runs.get(position=1)
    run.requests |= {"request": None, "wait_ms": None, "preempted_ms": None}
    run.save()
    assert "its waiting counts as prefill" in rows.text_of(signed_in.get(address(row)))


def test_the_experiment_leads_to_the_run(signed_in: Any, member: Any) -> None:
    row = rows.done(member)
    page = signed_in.get(f"{row.get_absolute_url()}?run=1&behind=tpot_ms").content.decode()
    assert f'href="{address(row)}#requests"' in page
    assert f'href="{address(row)}?behind=tpot_ms#steps"' in page
