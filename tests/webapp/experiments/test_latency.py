"""What users feel: distributions, goodput, and the steps behind a p95."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.result import Run
from tests.webapp.experiments import make, rows
from webapp.experiments import latency
from webapp.experiments.models import Run as RunRow

CORNERS = ["1×16", "4×64"]


def runs() -> list[Run]:
    return make.result(make.experiment()).runs


def read(run: Run, **changes: Any) -> dict[str, Any]:
    """What the page reads of a run."""
    assert run.summary
    assert run.requests
    read = {
        "variant": run.variant,
        "condition": run.condition,
        "position": 0,
        "summary": run.summary.model_dump(),
        "spec__workload__limits": run.spec.workload.limits.model_dump(),
    }
    return read | {f"requests__{name}": getattr(run.requests, name) for name in latency.CURVES} | changes


def test_a_distribution_rises_at_each_value() -> None:
    assert latency.ecdf([3.0, 1.0, 2.0, 2.0]) == [(1, 0), (1, 0.25), (2, 0.5), (2, 0.75), (3, 1)]
    assert latency.ecdf([7.0]) == [(7, 0), (7, 1)]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=500), st.integers(2, 50))
def test_points_that_are_kept_lie_on_the_distribution(values: list[float], most: int) -> None:
    points = latency.ecdf(values, most)
    assert len(points) <= most + 1
    assert points[-1] == (max(values), 1.0)
    for x, share in points[1:]:  # with ties, some point of the jump
        below, upto = np.mean([value < x for value in values]), np.mean([value <= x for value in values])
        assert below < share <= upto


def test_variants_are_lines_at_one_corner() -> None:
    found = latency.section([read(run) for run in runs()[:2]], CORNERS, "1×16", by_corner=False)
    assert found
    assert (found.corner, found.corners) == ("1×16", CORNERS)
    assert [curve.id for curve in found.curves] == ["ecdf-ttft_ms", "ecdf-tpot_ms", "ecdf-e2e_ms"]
    lines = found.curves[0].config["data"]["datasets"]
    assert [line["label"] for line in lines] == ["gate_up", "none"]
    assert lines[0]["data"] == [{"x": 2, "y": 0}, {"x": 2, "y": 0.5}, {"x": 3, "y": 1}]
    assert lines[0]["borderColor"] != lines[1]["borderColor"]


def test_corners_are_lines_of_the_only_variant() -> None:
    found = latency.section([read(run) for run in runs()[::2]], CORNERS, "1×16", by_corner=True)
    assert found
    assert [row.name for row in found.rows] == CORNERS
    assert found.corners == []


def test_fifteen_lines_differ_in_colour_or_dash() -> None:
    found = latency.section(
        [read(runs()[0], variant=f"v{number}") for number in range(15)], CORNERS, "1×16", by_corner=False
    )
    assert found
    lines = found.curves[0].config["data"]["datasets"]
    assert len({(line["borderColor"], tuple(line["borderDash"])) for line in lines}) == 15


def test_without_attention_nothing_is_felt() -> None:
    nothing = {f"requests__{name}": None for name in latency.CURVES}
    assert latency.section([read(runs()[0], **nothing)], CORNERS, "1×16", by_corner=False) is None


def test_a_latency_that_no_request_has_is_not_drawn() -> None:
    found = latency.section([read(runs()[0], requests__tpot_ms=[None, None])], CORNERS, "1×16", by_corner=False)
    assert found
    assert [curve.id for curve in found.curves] == ["ecdf-ttft_ms", "ecdf-e2e_ms"]


def test_limits_that_nobody_met_are_held_against_the_best() -> None:
    limits = {"ttft_ms": 1.0, "tpot_ms": 0.5, "e2e_ms": None}
    run = runs()[0]
    assert run.summary
    for goodput, missed in ((0.0, "TTFT 2.00 ms, TPOT 1.00 ms"), (0.5, ""), (None, "")):
        summary = run.summary.model_copy(update={"goodput_per_s": goodput}).model_dump()
        given = read(run, summary=summary, spec__workload__limits=limits)
        found = latency.section([given], CORNERS, "1×16", by_corner=False)
        assert found
        assert found.rows[0].missed.replace("\N{NO-BREAK SPACE}", " ") == missed


def test_a_latency_that_nobody_has_comes_near_no_limit() -> None:
    run = runs()[0]
    assert run.summary
    summary = run.summary.model_copy(update={"goodput_per_s": 0.0}).model_dump()
    changes = {"requests__tpot_ms": [None, None], "spec__workload__limits": {"ttft_ms": 1.0, "tpot_ms": 1.0}}
    found = latency.section([read(run, summary=summary, **changes)], CORNERS, "1×16", by_corner=False)
    assert found
    assert found.rows[0].missed == "TTFT 2.00\N{NO-BREAK SPACE}ms"


def test_limits_are_said_in_words() -> None:
    assert latency.limits_in_words({"ttft_ms": 200, "tpot_ms": None, "e2e_ms": 9000}) == (
        "TTFT at most 200\N{NO-BREAK SPACE}ms, E2E at most 9.00\N{NO-BREAK SPACE}s"
    )
    assert latency.limits_in_words({"ttft_ms": None}) == ""


def behind(metric: str, **changes: Any) -> latency.Behind | None:
    """What is behind a p95 of the first run, with ``changes`` of its summary."""
    run = runs()[0]
    assert run.summary
    assert run.steps
    return latency.behind(run.summary.model_copy(update=changes), run.steps, run.scale, metric)


def test_the_steps_behind_a_p95_with_their_stages() -> None:
    found = behind("tpot_ms")
    assert found
    assert found.chosen.name == "Time per output token"
    assert [tail.metric for tail in found.tails] == ["ttft_ms", "tpot_ms"]
    assert [(step.number, step.prefill_tokens, step.decode_tokens) for step in found.steps] == [(1, 0, 1), (2, 0, 1)]
    for step in found.steps:
        assert sum(step.stages_ms) == pytest.approx(step.ms)


def test_an_unknown_latency_leads_to_the_first() -> None:
    found = behind("x")
    assert found
    assert found.chosen.metric == "ttft_ms"


def test_without_a_p95_nothing_is_behind_it() -> None:
    assert behind("ttft_ms", tails={}) is None


@pytest.mark.django_db
def test_the_page_says_plainly_that_nobody_was_content(signed_in: Any, member: Any) -> None:
    row = rows.done(member)
    run = row.runs.get(position=3)
    run.summary["goodput_per_s"], run.spec["workload"]["limits"]["ttft_ms"] = 0.0, 1.0
    run.save()
    said = rows.text_of(signed_in.get(row.get_absolute_url())).replace("\N{NO-BREAK SPACE}", " ")
    assert "none: no request met all limits, so goodput is 0. Each by itself, the shortest were TTFT 2.00 ms." in said


@pytest.mark.django_db
def test_the_page_leads_from_a_p95_to_its_steps(signed_in: Any, member: Any) -> None:
    row = rows.done(member)
    page = signed_in.get(f"{row.get_absolute_url()}?run=1&behind=tpot_ms&corner=1×16")
    said = rows.text_of(page)
    assert "What users feel at 1×16" in said
    assert "Time per output token: the steps behind its p95" in said
    assert "these 2 steps : prefill of request 1 in the way" in said
    leads = r'href="\?run=0&amp;behind=ttft_ms[^"]*#behind" title="1 step: its own prompt of 16 tokens"'
    assert re.search(leads, page.content.decode())
    assert "Goodput" not in said


@pytest.mark.django_db
def test_goodput_stands_beside_its_limits(signed_in: Any, member: Any) -> None:
    limits = {"ttft_ms": 1.0}
    base = {"model": "olmoe-1b-7b", "workload": {"requests": 4, "output_tokens": 4, "limits": limits}}
    row = rows.done(member, base=base)
    for run in RunRow.objects.filter(experiment=row):
        run.summary["goodput_per_s"] = 0.0
        run.save()
    said = rows.text_of(signed_in.get(row.get_absolute_url()))
    assert "limits: TTFT at most 1.00 ms" in said
    assert "Goodput a second" in said


@pytest.mark.django_db
def test_a_run_of_an_earlier_version_has_no_limits(signed_in: Any, member: Any) -> None:
    row = rows.done(member)
    for run in RunRow.objects.filter(experiment=row):
        del run.spec["workload"]["limits"]
        run.summary.pop("tails")
        run.save()
    said = rows.text_of(signed_in.get(row.get_absolute_url()))
    assert "What users feel at" in said
    assert "Behind the p95" not in said
