"""The experiment's page in each of its states, and what comes down from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench_worker.result import Result
from bench_worker.strategies import NON_CAUSAL
from tests.webapp.experiments import make
from tests.webapp.experiments.rows import done, ended, measuring, put, run, text_of, title_of
from webapp.experiments import queue
from webapp.experiments.models import State
from webapp.traces.store import import_trace

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


def test_a_waiting_experiment_says_behind_how_many(signed_in: Any, member: Any) -> None:
    put(member), put(member)
    row = put(member)
    text = text_of(signed_in.get(row.get_absolute_url()))
    assert "Waiting for a worker of pool default, behind 2 others." in text
    assert "No worker has registered for pool default yet." in text


def test_a_running_experiment_fills_in_so_far(signed_in: Any, member: Any) -> None:
    row = measuring(member)
    response = signed_in.get(row.get_absolute_url())
    assert title_of(response) == "60% · Fusion · Moescope"
    text = text_of(response)
    assert "60% ends in about 40 s" in text
    assert text.count("so far") == 1
    assert "gate_up baseline" in text
    address = f"{row.get_absolute_url()}live/?shown=running-1-1"
    assert f'hx-get="{address}" hx-trigger="every 1s"' in response.content.decode()


def actions(page: str) -> list[str]:
    """What the buttons and links at the head of the page say."""
    found = page[page.index('id="actions"') :]
    return re.findall(r">([A-Z][\w ]+)</(?:a|button|summary)>", found[: found.index("</details>")])


def test_between_two_runs_only_the_head_is_sent(signed_in: Any, member: Any) -> None:
    row = measuring(member)
    response = signed_in.get(f"{row.get_absolute_url()}live/?shown=running-1-1", HTTP_HX_REQUEST="true")
    part = response.content.decode()
    assert response["HX-Reswap"] == "none"
    assert "<title>60% · Fusion · Moescope</title>" in part
    assert 'id="actions" hx-ext="morph" hx-swap-oob="morph"' in part
    assert 'id="lead" hx-ext="morph" hx-swap-oob="morph"' in part
    assert 'id="live"' not in part
    page = signed_in.get(row.get_absolute_url()).content.decode()
    assert actions(part) == actions(page)


@pytest.mark.parametrize("shown", ["running-1-0", "running-2-1", "queued-0-0", ""])
def test_what_has_changed_since_is_sent_whole(signed_in: Any, member: Any, shown: str) -> None:
    row = measuring(member)
    response = signed_in.get(f"{row.get_absolute_url()}live/?shown={shown}", HTTP_HX_REQUEST="true")
    assert "HX-Reswap" not in response
    assert 'id="live"' in response.content.decode()


def test_the_live_part_is_the_same_fragment(signed_in: Any, member: Any) -> None:
    row = measuring(member)
    page = signed_in.get(row.get_absolute_url()).content.decode()
    part = signed_in.get(f"{row.get_absolute_url()}live/", HTTP_HX_REQUEST="true").content.decode()
    assert "<html" not in part
    shared = part[part.index('<div id="live"') :].strip().removesuffix("</div>")
    assert re.sub(r"\s+", " ", shared)[:2000] in re.sub(r"\s+", " ", page)
    assert "<title>60% · Fusion · Moescope</title>" in part
    assert 'id="actions" hx-ext="morph" hx-swap-oob="morph"' in part


def test_the_live_part_without_its_page_leads_to_the_page(signed_in: Any, member: Any) -> None:
    row = put(member)
    assert signed_in.get(f"{row.get_absolute_url()}live/").url == row.get_absolute_url()


def test_results_come_with_the_last_live_part_which_then_stops(signed_in: Any, member: Any) -> None:
    row = done(member)
    part = signed_in.get(f"{row.get_absolute_url()}live/", HTTP_HX_REQUEST="true").content.decode()
    assert "every 1s" not in part
    assert "Where a step" in part
    assert "<title>Done · Fusion · Moescope</title>" in part


def test_a_finished_experiment_answers_first_and_shows_everything(signed_in: Any, member: Any) -> None:
    row = done(member)
    response = signed_in.get(row.get_absolute_url())
    text = text_of(response)
    sections = ["gate_up has the shortest", "Step time", "Where a step's time goes", "What users feel",
                "How tokens were routed", "One run", "Requests", "How sure", "What was asked", "Where it ran",
                "Reproduce"]  # fmt: skip
    places = [text.index(section) for section in sections]
    assert places == sorted(places)
    for shown in ("×16", "1×16", "4×64", "equals the reference", "Weights are random.", "kernels.fusion", "f00d",
                  f"python -m bench_worker run experiment-{row.pk}.json --out result-{row.pk}.json"):  # fmt: skip
        assert shown in text, shown
    assert response.content.decode().count("<h1") == 1


def test_every_chart_has_its_configuration_and_a_table(signed_in: Any, member: Any) -> None:
    page = signed_in.get(done(member).get_absolute_url()).content.decode()
    charts = re.findall(r'<canvas data-chart="([\w-]+)" role="img" aria-label="[^"]+"', page)
    assert charts == [
        "stages-0",
        "stages-1",
        "trade-off-0",
        "trade-off-1",
        "ecdf-ttft_ms",
        "ecdf-tpot_ms",
        "ecdf-e2e_ms",
        "timeline",
    ]
    for name in charts:
        found = re.search(rf'<script id="{name}" type="application/json">(.*?)</script>', page, re.DOTALL)
        assert found is not None
        assert json.loads(found[1])["type"] == ("line" if name.startswith(("ecdf", "trade")) else "bar")
        assert page.index("<table", found.end()) > 0


def test_another_run_is_chosen_in_the_address(signed_in: Any, member: Any) -> None:
    row = done(member)
    assert "One run gate_up at 1×16" in text_of(signed_in.get(row.get_absolute_url()))
    assert "One run none at 4×64" in text_of(signed_in.get(f"{row.get_absolute_url()}?run=3"))
    assert "One run gate_up at 1×16" in text_of(signed_in.get(f"{row.get_absolute_url()}?run=no"))


def test_runs_are_chosen_by_variant_and_by_corner(signed_in: Any, member: Any) -> None:
    row = done(member)
    page = signed_in.get(f"{row.get_absolute_url()}?run=3&corner=1×16").content.decode()
    chips = re.findall(r'<ul class="chips" aria-label="(\w+)">(.*?)</ul>', page, re.DOTALL)
    links = [(name, re.findall(r'href="([^"]+)"(?: aria-current="true")?>([^<]+)', inside)) for name, inside in chips]
    kept = "run=3&amp;corner=1%C3%9716"
    assert links == [
        ("Corners", [(f"?{kept}#routing", "1×16"), (f"?{kept.replace('1%C3%9716', '4%C3%9764')}#routing", "4×64")]),
        ("Variants", [(f"?{kept.replace('=3', '=2')}#run", "gate_up"), (f"?{kept}#run", "none")]),
        ("Corners", [(f"?{kept.replace('=3', '=1')}#run", "1×16"), (f"?{kept}#run", "4×64")]),
    ]


def test_what_routing_came_to_is_shown_for_one_corner(signed_in: Any, member: Any) -> None:
    row = done(member)
    text = text_of(signed_in.get(row.get_absolute_url()))
    assert "How tokens were routed at 4×64 1×16 4×64" in text  # the last corner, unless another one is chosen
    assert "gate_up 8 – 1.60 0.800 of 64 2.50 one rank 25% none 8" in text
    assert "64 experts, top to bottom; 5 steps, left to right, a column for each 3" in text
    assert "Tokens by how many experts they get Variant 1 2 gate_up 40% 60% none 40% 60%" in text
    assert "Expert gate_up none 0 5 5 1 3 3 2 0 0" in text
    for chosen in ("1×16", "none"):
        page = signed_in.get(f"{row.get_absolute_url()}?corner={chosen}")
        assert f"How tokens were routed at {chosen if chosen == '1×16' else '4×64'}" in text_of(page)


def test_a_single_variant_shows_its_routing_at_every_corner(signed_in: Any, member: Any) -> None:
    page = signed_in.get(done(member, vary=None).get_absolute_url())
    assert "As the model's own 1×16 8 – 1.60" in text_of(page)
    assert page.content.decode().count('class="heatmap"') == 2


def test_every_picture_has_words(signed_in: Any, member: Any) -> None:
    page = signed_in.get(done(member).get_absolute_url()).content.decode()
    pictures = re.findall(r'<svg [^>]*role="img" aria-label="([^"]+)"', page)
    assert len(pictures) == page.count("<svg") == 6
    assert pictures[0].startswith("Load of 64 experts by step, gate_up at 4×64: the hottest has 40.0 times")


def test_what_was_dropped_is_counted(signed_in: Any, member: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = make.routing()
    monkeypatch.setattr(make, "routing", lambda: usual.model_copy(update={"dropped": 3, "expert_overlap": None}))
    text = text_of(signed_in.get(done(member).get_absolute_url()))
    assert "gate_up 8 3 0.0% 1.60" in text
    assert "one rank none of its own" in text


def test_a_result_without_routing_shows_none(signed_in: Any, member: Any) -> None:
    row = done(member)
    row.runs.update(routing=None)
    assert "How tokens were routed" not in text_of(signed_in.get(row.get_absolute_url()))


STRATEGIES = {"vary": {"field": "routing.strategy", "values": ["token_choice", "soft"]}}


def test_a_strategy_that_looks_ahead_is_marked_wherever_it_stands(signed_in: Any, member: Any) -> None:
    row = done(member, **STRATEGIES)
    text = text_of(signed_in.get(row.get_absolute_url()))
    everywhere = re.sub(r"Load of 64 experts.*?nothing\.", "", text)
    assert f"Non-causal: {NON_CAUSAL}." in text
    assert everywhere.count("soft non-causal") == len(re.findall(r"\bsoft\b", everywhere.partition("Reproduce")[0])) > 8
    assert "token_choice non-causal" not in text
    running = text_of(signed_in.get(measuring(member, finished=2, **STRATEGIES).get_absolute_url()))
    assert "soft non-causal" in running
    assert f"Non-causal: {NON_CAUSAL}." in running


@pytest.mark.parametrize("corners", [1, 6])
def test_the_pages_queries_do_not_grow_with_the_runs(
    signed_in: Any, member: Any, corners: int, django_assert_num_queries: Any
) -> None:
    row = done(member, conditions=[{"concurrency": 1, "prompt_tokens": 16 + n} for n in range(corners)])
    # session, user; experiment, runs; the chosen run's series and requests; what is compared at one corner; of the
    # comparison: runs, series, experiment, variants at each corner
    with django_assert_num_queries(10):
        signed_in.get(row.get_absolute_url())


@pytest.mark.parametrize("count", [1, 12])
def test_the_queries_of_the_other_states_do_not_grow(
    signed_in: Any, member: Any, count: int, django_assert_num_queries: Any
) -> None:
    for _ in range(count):
        running = measuring(member)
    for _ in range(count):
        waiting = put(member)
    with django_assert_num_queries(3):  # session, user; experiment
        signed_in.get(running.get_absolute_url())
    with django_assert_num_queries(5):  # session, user; experiment, those ahead, its pool's machines
        signed_in.get(waiting.get_absolute_url())
    with django_assert_num_queries(3):
        signed_in.get(f"{waiting.get_absolute_url()}describe/")


def test_what_rounding_the_weights_changes_stands_beside_the_error(signed_in: Any, member: Any) -> None:
    base = {"model": "olmoe-1b-7b", "kernels": {"experts": "auto"}}
    row = done(member, base=base, vary={"field": "kernels.quantization", "values": ["none", "int8"]})
    text = text_of(signed_in.get(row.get_absolute_url()))
    assert text.count("rounded weights change it by 20%") == 2  # of int8 at each of two corners


def test_a_wrong_result_is_named_and_has_no_times(signed_in: Any, member: Any) -> None:
    text = text_of(signed_in.get(done(member, wrong=frozenset(["none"])).get_absolute_url()))
    assert "none wrong result" in text
    assert "2 of 4 runs gave a wrong result and have no times." in text


def test_an_experiment_without_any_time_still_has_its_page(signed_in: Any, member: Any) -> None:
    row = done(member, wrong=frozenset(["none", "gate_up"]))
    assert "No run has times" in text_of(signed_in.get(row.get_absolute_url()))


def test_a_failed_experiment_shows_its_sentence_and_the_last_output(signed_in: Any, member: Any) -> None:
    row = ended(measuring(member), State.FAILED)
    response = signed_in.get(row.get_absolute_url())
    text = text_of(response)
    assert text.index("The measuring program was killed (SIGKILL).") < text.index("step 1 <step 2>")
    assert "&lt;step 2&gt;" in response.content.decode()
    assert title_of(response) == "Failed · Fusion · Moescope"


def test_an_unknown_experiment_is_not_found(signed_in: Any) -> None:
    for page in ("", "live/", "result/", "experiment/"):
        assert signed_in.get(f"/experiments/99/{page}").status_code == 404


@pytest.mark.parametrize("how", [State.QUEUED, State.RUNNING, State.DONE, State.FAILED, State.CANCELED])
def test_every_state_has_a_page_with_one_heading(signed_in: Any, member: Any, how: str) -> None:
    match how:
        case State.QUEUED:
            row = put(member)
        case State.RUNNING:
            row = run(member)
        case State.DONE:
            row = done(member)
        case _:
            row = ended(run(member), how)
    response = signed_in.get(row.get_absolute_url())
    assert response.content.decode().count("<h1") == 1
    assert (b"Cancel</button>" in response.content) == (how in (State.QUEUED, State.RUNNING))


# Cancel


def test_a_waiting_experiment_is_canceled_from_its_page(signed_in: Any, member: Any) -> None:
    row = put(member)
    response = signed_in.post(f"{row.get_absolute_url()}cancel/", follow=True)
    assert "Canceled before it ran." in text_of(response)


def test_a_running_experiment_is_asked_to_stop(signed_in: Any, member: Any) -> None:
    row = run(member)
    page = signed_in.post(f"{row.get_absolute_url()}cancel/", follow=True)
    assert "being canceled" in text_of(page)
    row.refresh_from_db()
    assert row.cancel_requested


def test_what_has_ended_can_not_be_canceled(signed_in: Any, member: Any) -> None:
    row = done(member)
    page = signed_in.post(f"{row.get_absolute_url()}cancel/", follow=True)
    assert "Fusion had ended before it could be canceled." in text_of(page)


def test_a_link_alone_cancels_nothing(signed_in: Any, member: Any) -> None:
    row = put(member)
    assert signed_in.get(f"{row.get_absolute_url()}cancel/").status_code == 405


# Downloads


def test_the_result_downloads_as_the_worker_wrote_it(signed_in: Any, member: Any) -> None:
    response = signed_in.get(f"{done(member).get_absolute_url()}result/")
    assert Result.model_validate_json(response.content) == make.result(make.experiment())
    assert "result-" in response["Content-Disposition"]


def test_there_is_no_result_before_the_end(signed_in: Any, member: Any) -> None:
    assert signed_in.get(f"{run(member).get_absolute_url()}result/").status_code == 404


def test_the_experiment_downloads_in_the_schemas_order(signed_in: Any, member: Any) -> None:
    row = put(member)
    document = json.loads(signed_in.get(f"{row.get_absolute_url()}experiment/").content)
    assert document == make.experiment().document()
    assert list(document) == ["schema", "title", "base", "vary", "conditions", "measure"]
    assert list(document["base"])[:3] == ["model", "layers", "routing"]


def test_an_imported_trace_is_part_of_what_reproduces_it(signed_in: Any, member: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n")
    import_trace(tmp_path / "mine.csv")
    base = {"model": "olmoe-1b-7b", "workload": {"trace": "mine", "requests": 1}}
    row = queue.enqueue(make.experiment(traces=frozenset(["mine"]), base=base), author=member)
    response = signed_in.get(row.get_absolute_url())
    assert f"--out result-{row.pk}.json --traces ." in text_of(response)
    assert 'href="/traces/mine.csv"' in response.content.decode()


@pytest.mark.parametrize(
    ("load", "vary"),
    [
        ({"profile": "recorded", "recording": "a"}, {"field": "load.recording", "values": ["a", "b"]}),
        ({}, {"field": "load", "values": [{"profile": "uniform"}, {"profile": "recorded", "recording": "a"},
                                          {"profile": "recorded", "recording": "b"}]}),
    ],
)  # fmt: skip
def test_recordings_are_part_of_what_reproduces_it(signed_in: Any, member: Any, load: Any, vary: Any) -> None:
    base = {"model": "olmoe-1b-7b", "load": load}
    asked = make.experiment(recordings=frozenset(["a", "b"]), base=base, vary=vary)
    response = signed_in.get(queue.enqueue(asked, author=member).get_absolute_url())
    assert ".json --recordings ." in text_of(response)
    for name in ("a", "b"):
        assert f'href="/traces/{name}.npz"' in response.content.decode()


@pytest.mark.parametrize(
    "page", ["/", "/experiments/", "/experiments/1/", "/experiments/1/live/", "/experiments/1/result/"]
)
def test_every_page_asks_to_sign_in(client: Any, page: str) -> None:
    assert client.get(page).status_code == 302


# The comparison of its variants


def test_the_variants_are_compared_with_the_first(signed_in: Any, member: Any) -> None:
    """gate_up takes 1 to 1.4 and none 2 to 2.4 at 1×16, 3 to 3.4 and 4 to 4.4 at 4×64."""
    text = text_of(signed_in.get(done(member, num_steps=60).get_absolute_url())).replace("\N{NO-BREAK SPACE}", " ")
    assert "gate_up is fastest at every corner: none is ▲ 55% (" in text
    assert "none ▲ 83% (" in text
    assert "Change against gate_up with its 95% interval" in text
    assert "One scale: the mean step of gate_up at that corner is 100%." in text


def test_another_baseline_is_chosen_in_the_address(signed_in: Any, member: Any) -> None:
    row = done(member, num_steps=60)
    other = row.runs.order_by("position")[1].pk
    text = text_of(signed_in.get(f"{row.get_absolute_url()}?base={other}")).replace("\N{NO-BREAK SPACE}", " ")
    assert "gate_up is fastest at every corner: ▼ 36% (" in text
    assert "none baseline" in text
    assert "gate_up baseline" in text_of(signed_in.get(f"{row.get_absolute_url()}?base=no"))


def test_its_runs_are_compared_further_with_one_click(signed_in: Any, member: Any) -> None:
    row = done(member)
    first, last = row.runs.order_by("position").first(), row.runs.order_by("position").last()
    page = signed_in.get(row.get_absolute_url()).content.decode()
    assert f'href="/compare/?runs={first.pk}-{last.pk}&amp;base={first.pk}"' in page
    single = done(member, vary=None, conditions=[])
    assert "stage by stage and step by step" not in text_of(signed_in.get(single.get_absolute_url()))
