"""The page of a comparison, and what comes down from it."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest

from tests.webapp.experiments.rows import done, on_ranks, text_of, title_of
from webapp.experiments import compare_page, compare_read
from webapp.experiments.compare_summary import COLUMNS

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]
STEPS = 60


def runs_of(row: Any) -> list[int]:
    """gate_up at 1×16, none at 1×16, gate_up at 4×64, none at 4×64."""
    return list(row.runs.order_by("position").values_list("pk", flat=True))


def address(*numbers: int, **more: str) -> str:
    return "/compare/?" + "&".join(
        [f"runs={compare_read.written(numbers)}", *(f"{key}={text}" for key, text in more.items())]
    )


def words(response: Any) -> str:
    return text_of(response).replace("\N{NO-BREAK SPACE}", " ")


def test_variants_of_an_experiment_are_compared_stage_by_stage(signed_in: Any, member: Any) -> None:
    """none takes 2 to 2.4 where gate_up takes 1 to 1.4: at the median, 2.2 / 1.2."""
    numbers = runs_of(done(member, num_steps=STEPS))
    response = signed_in.get(address(*numbers[:2]))
    assert response.status_code == 200
    assert title_of(response) == "2 runs compared · Moescope"
    text = words(response)
    places = [text.index(section) for section in (
        "gate_up is fastest at the one corner measured: none is ▲",
        "What differs kernels.fusion: gate_up → none; same trace and batches, same machine.",
        "Step time", "gate_up baseline", "Paired: all ran each batch right after each other.", "Change by corner",
        "Where a step's time goes", "Stage by stage at 1×16", "Step by step at 1×16", "Beside the time",
        "The summary as Markdown",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "none ▲ 83% (" in text
    assert response.content.decode().count("<h1") == 1


def test_modelled_networks_are_marked_in_every_table_of_times(signed_in: Any, member: Any) -> None:
    page = signed_in.get(address(*runs_of(on_ranks(member, [0, 1]))[:2])).content.decode()
    tables = [table for table in re.findall(r"<table.*?</table>", page, re.DOTALL) if "Mean step" in table]
    assert tables
    assert all(table.count("≈×16") == 2 for table in tables)


def test_a_run_that_was_not_steady_leads_to_the_rule_on_its_experiments_page(signed_in: Any, member: Any) -> None:
    row = done(member)
    for run in row.runs.all():
        run.noise = run.noise | {"label": "noisy"}
        run.save()
    assert f'href="{row.get_absolute_url()}#steady"' in signed_in.get(address(*runs_of(row)[:2])).content.decode()
    page = signed_in.get(row.get_absolute_url()).content.decode()
    assert 'href="#steady"' in page
    assert 'id="steady"' in page


def test_every_chart_has_words_and_a_table(signed_in: Any, member: Any) -> None:
    page = signed_in.get(address(*runs_of(done(member, num_steps=STEPS)))).content.decode()
    charts = re.findall(r'<canvas data-chart="([\w-]+)" role="img" aria-label="[^"]+"', page)
    assert charts == ["change-0", "change-1", "stages-0", "stages-1", "differences"]
    for name in charts:
        found = re.search(rf'<script id="{name}" type="application/json">(.*?)</script>', page, re.DOTALL)
        assert found is not None
        assert json.loads(found[1])["data"]["datasets"]


def test_the_baseline_stands_in_the_address(signed_in: Any, member: Any) -> None:
    numbers = runs_of(done(member, num_steps=STEPS))
    response = signed_in.get(address(*numbers, base=str(numbers[1])))
    text = words(response)
    assert "none baseline" in text
    assert "Change against none with its 95% interval" in text
    assert re.search(rf'<option value="{numbers[1]}" selected>none</option>', response.content.decode())


def test_a_corner_is_chosen_in_the_address(signed_in: Any, member: Any) -> None:
    numbers = runs_of(done(member, num_steps=STEPS))
    assert "Stage by stage at 4×64" in words(signed_in.get(address(*numbers)))
    assert "Stage by stage at 1×16" in words(signed_in.get(address(*numbers, corner="1×16")))
    assert "Stage by stage at 4×64" in words(signed_in.get(address(*numbers, corner="no")))


def test_runs_of_two_experiments_are_unpaired_and_named_by_what_differs(signed_in: Any, member: Any) -> None:
    first, second = done(member, num_steps=STEPS), done(member, num_steps=STEPS)
    text = words(signed_in.get(address(runs_of(first)[0], runs_of(second)[1])))
    assert f"gate_up #{first.pk} baseline" in text
    assert f"none #{second.pk} ▲" in text
    assert "unpaired" in text
    assert "Unpaired where it says so: measured at different times" in text


def test_real_ranks_of_different_numbers_are_compared_across_experiments(signed_in: Any, member: Any) -> None:
    """They can't be variants of one experiment, and two experiments have the same batches."""
    real = {"parallel": {"mode": "distributed"}}
    two, four = (on_ranks(member, nodes, num_steps=STEPS, **real) for nodes in ([0, 0], [0, 0, 0, 0]))
    text = words(signed_in.get(address(runs_of(two)[0], runs_of(four)[0])))
    assert "What differs parallel.layout.dp: 1 → 2; same trace and batches, same machine." in text
    assert "▲ 56% (45–69) unpaired" in text  # of the experts, whose mean is 150 µs of two ranks and 250 of four
    assert "Unpaired where it says so: measured at different times" in text


def test_several_differences_are_listed_and_no_cause_is_named(signed_in: Any, member: Any) -> None:
    other = {"model": "olmoe-1b-7b", "kernels": {"experts": "loop", "fusion": "none"},
             "workload": {"requests": 4, "output_tokens": 4}}  # fmt: skip
    first = runs_of(done(member, num_steps=STEPS, vary=None))[0]
    second = runs_of(done(member, num_steps=STEPS, vary=None, base=other))[0]
    text = words(signed_in.get(address(first, second)))
    assert "2 things differ; this page can't say which one did it. kernels.experts deepspeed → loop" in text
    assert "kernels.fusion gate_up → none" in text


def test_runs_of_other_batches_have_no_ratio(signed_in: Any, member: Any) -> None:
    numbers = runs_of(done(member, num_steps=STEPS))
    text = words(signed_in.get(address(numbers[0], numbers[3])))
    assert "No ratio of step times can be given: the baseline has no run here." in text
    assert "workload.concurrency 1 → 4" in text
    text = words(signed_in.get(address(numbers[0], numbers[2])))
    assert "One variant at several corners: their batches differ, so no ratio of step times can be given." in text


def test_few_steps_are_said(signed_in: Any, member: Any) -> None:
    text = words(signed_in.get(address(*runs_of(done(member))[:2])))
    assert "Too few steps to say what is faster: the table has the medians." in text


def test_the_address_becomes_the_shortest_one(signed_in: Any, member: Any) -> None:
    numbers = runs_of(done(member))
    ticked = "&".join(f"runs={number}" for number in numbers)
    response = signed_in.get(f"/compare/?{ticked}&base={numbers[1]}&noise=x")
    assert response.url == f"/compare/?runs={numbers[0]}-{numbers[-1]}&base={numbers[1]}"
    assert signed_in.get(response.url).status_code == 200


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("runs=9991,9992", "Runs: 9991 and 9992 are no finished runs."),
        ("runs=x", "Runs: 'x' is not the number of a run; give numbers as in 3,5 or 3-9."),
        ("runs=1-500", "Runs: 500 runs are too many; at most 100 can be compared at once."),
        ("runs=,", "Runs: none is chosen; a comparison takes two or more."),
    ],
)
def test_what_can_not_be_compared_says_why_and_offers_others(
    signed_in: Any, member: Any, query: str, sentence: str
) -> None:
    done(member)
    response = signed_in.get(f"/compare/?{query}", follow=True)
    assert response.status_code == 422
    assert sentence in words(response)
    assert "Compare the ticked runs" in words(response)
    download = signed_in.get(f"/compare/table/?{query}")
    assert (download.status_code, download.content.decode().strip().lower()) == (422, sentence.lower())


def test_one_run_is_no_comparison(signed_in: Any, member: Any) -> None:
    [number, *_] = runs_of(done(member))
    response = signed_in.get(address(number))
    assert response.status_code == 422
    assert f"Runs: run {number} is only one; a comparison takes two or more." in words(response)
    assert f'value="{number}" aria-label="gate_up at 1×16 of Fusion" checked' in response.content.decode()


@pytest.mark.parametrize(("base", "sentence"), [
    ("9991", "Base: run 9991 is not among the runs that are compared; it must be one of"),
    ("first", "Base: 'first' is not the number of a run; it must be one of those that are compared."),
])  # fmt: skip
def test_a_baseline_that_is_not_among_them_is_refused(signed_in: Any, member: Any, base: str, sentence: str) -> None:
    response = signed_in.get(address(*runs_of(done(member))[:2], base=base))
    assert response.status_code == 422
    assert sentence in words(response)


def test_runs_without_a_common_stage_are_refused(signed_in: Any, member: Any) -> None:
    row = done(member)
    first, second = row.runs.order_by("position")[:2]
    second.series.exclude(rank=None).delete()
    response = signed_in.get(address(first.pk, second.pk))
    assert response.status_code == 422
    assert "Runs: they have no stage in common, so there is nothing to compare." in words(response)


def test_the_table_comes_down_as_it_is_shown(signed_in: Any, member: Any) -> None:
    numbers = runs_of(done(member, num_steps=STEPS))
    page = words(signed_in.get(address(*numbers)))
    response = signed_in.get(address(*numbers).replace("/?", "/table/?"))
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert tuple(rows[0]) == COLUMNS
    steps = [row for row in rows if row["part"] == "step"]
    assert [(row["corner"], row["contender"], row["run"]) for row in steps] == [
        ("1×16", "gate_up", str(numbers[0])), ("1×16", "none", str(numbers[1])),
        ("4×64", "gate_up", str(numbers[2])), ("4×64", "none", str(numbers[3])),
    ]  # fmt: skip
    # gate_up at 4×64 takes 3 to 3.4 and none 4 to 4.4
    assert float(steps[3]["ratio_to_baseline"]) == pytest.approx(4.2 / 3.2)
    assert "▲ 31% (" in page
    assert steps[3]["samples"] == str(STEPS)
    assert {row["part"] for row in rows} == {"step", "route", "permute", "experts", "combine", "attention", "other",
                                             "ttft", "tpot", "e2e"}  # fmt: skip
    same = json.loads(signed_in.get(address(*numbers, format="json").replace("/?", "/table/?")).content)
    assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in same] == rows


def test_the_markdown_holds_the_answer_the_table_and_the_address(signed_in: Any, member: Any) -> None:
    numbers = runs_of(done(member, num_steps=STEPS))
    response = signed_in.get(address(*numbers))
    found = re.search(r'<code id="markdown">(.*?)</code>', response.content.decode(), re.DOTALL)
    assert found is not None
    lines = found[1].replace("\N{NO-BREAK SPACE}", " ").splitlines()
    assert lines[2].startswith("gate_up is fastest at every corner")
    assert lines[4].startswith("What differs: kernels.fusion: gate_up → none;")
    assert lines[6] == "|  | 1×16 | 4×64 | geometric mean |"
    assert lines[8].startswith("| gate_up (baseline) | ")
    assert lines[9].startswith("| none | ▲ ")
    assert lines[-1].endswith(f"http://testserver/compare/?runs={numbers[0]}-{numbers[-1]}")


@pytest.mark.parametrize("count", [2, 50])
def test_the_queries_do_not_grow_with_the_runs(
    signed_in: Any, member: Any, count: int, django_assert_num_queries: Any
) -> None:
    corners = [{"concurrency": 1, "prompt_tokens": 16 + n} for n in range(count // 2)]
    numbers = runs_of(done(member, num_steps=STEPS, conditions=corners))
    # session, user; runs, series, experiments, variants at each corner
    with django_assert_num_queries(6):
        assert signed_in.get(address(*numbers)).status_code == 200


def test_many_contenders_have_their_stages_as_far_as_there_is_room(
    signed_in: Any, member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_page, "PART_ROWS", 2)
    vary = {"field": "routing.top_k", "values": [1, 2, 3, 4]}
    text = words(signed_in.get(address(*runs_of(done(member, vary=vary))[:4])))
    assert "2 more have no room here" in text


def test_what_was_compared_is_remembered(signed_in: Any, member: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = runs_of(done(member, num_steps=STEPS))
    first = words(signed_in.get(address(*numbers)))
    monkeypatch.setattr("webapp.experiments.compare.compare_paired", None)
    assert words(signed_in.get(address(*numbers))) == first


def test_the_pages_ask_to_sign_in(client: Any) -> None:
    for page in ("/compare/", "/compare/?runs=1,2", "/compare/table/?runs=1,2"):
        assert client.get(page).status_code == 302
