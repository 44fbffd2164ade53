"""Home, list and the experiment's page in each of its states."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from bench_worker.result import Result
from tests.webapp.experiments import make
from webapp.experiments import ingest, machines, queue
from webapp.experiments.models import Experiment, State
from webapp.traces.store import import_trace

pytestmark = pytest.mark.django_db
MACHINE = {"name": "AMD EPYC, 2 cores", "fingerprint": "f00d", "memory_bytes": 24e9, "gpus": [], "cores": 2,
           "cpu": "AMD EPYC", "versions": {"torch": "2.13.0"}}  # fmt: skip


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "wake", lambda pool: None)


def put(author: Any, **changes: Any) -> Experiment:
    return queue.enqueue(make.experiment(**changes), author=author)


def run(author: Any, **changes: Any) -> Experiment:
    put(author, **changes)
    row = queue.claim("default", machines.register_this(MACHINE, "default"))
    assert row is not None
    return row


def measuring(author: Any, finished: int = 1) -> Experiment:
    row = run(author)
    runs = make.result(make.experiment()).runs[:finished]
    so_far = [r.model_dump(mode="json", include={"variant", "condition", "status", "summary"}) for r in runs]
    progress = {"phase": "measure", "done": 3, "total": 5, "variant": "none", "condition": "1×16",
                "since": timezone.now().timestamp() - 60}  # fmt: skip
    queue.beat(queue.fence_of(row), progress, so_far)
    return row


def done(author: Any, wrong: frozenset[str] = frozenset(), **changes: Any) -> Experiment:
    row = run(author, **changes)
    queue.begin_ingest(queue.fence_of(row))
    ingest.ingest(queue.fence_of(row), make.result(make.experiment(**changes), wrong=wrong), row.machine)
    row.refresh_from_db()
    return row


def ended(row: Experiment, how: str) -> Experiment:
    fence = queue.fence_of(row)
    if how == State.FAILED:
        queue.fail(fence, "The measuring program was killed (SIGKILL).", "step 1\n<step 2>")
    else:
        queue.cancel(fence)
    return row


def text_of(response: Any) -> str:
    """The page as it is read: no tags, blanks made one."""
    page = re.sub(r"<(script|title).*?</\1>", " ", response.content.decode(), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def title_of(response: Any) -> str:
    found = re.search(r"<title>(.*?)</title>", response.content.decode(), re.DOTALL)
    assert found is not None
    return unescape(found[1]).strip()


# Home


def test_an_empty_home_offers_the_first_experiment(signed_in: Any) -> None:
    response = signed_in.get("/")
    assert "Nothing runs now." in text_of(response)
    assert "Queue the first experiment" in text_of(response)


def test_home_shows_what_runs_what_waits_and_what_ended(signed_in: Any, member: Any) -> None:
    done(member, title="Ended well")
    ended(run(member, title="Ended badly"), State.FAILED)
    measuring(member)
    put(member, title="Still waits")
    text = text_of(signed_in.get("/"))
    assert "Fusion 60% about 40 s at this pace step 3 of 5, variant none, corner 1×16 · on AMD EPYC, 2 cores" in text
    assert "Queue 1 waiting Still waits anna" in text
    assert "Ended badly failed: The measuring program was killed (SIGKILL)." in text
    assert "Ended well gate_up has the shortest median step at every corner." in text


def test_home_asks_only_for_its_part_again(signed_in: Any, member: Any) -> None:
    measuring(member)
    part = signed_in.get("/", HTTP_HX_REQUEST="true").content.decode()
    assert part.strip().startswith('<div id="now" hx-get="/"')
    assert "<h1" not in part
    assert "60%" in part


@pytest.mark.parametrize("count", [1, 12])
def test_homes_queries_do_not_grow(signed_in: Any, member: Any, count: int, django_assert_num_queries: Any) -> None:
    for _ in range(count):
        ended(run(member), State.CANCELED)
    measuring(member)
    for _ in range(count):
        put(member)
    with django_assert_num_queries(6):  # session, user; running, number waiting, waiting, recent
        signed_in.get("/")


# List


def test_an_empty_list_offers_the_first_experiment(signed_in: Any) -> None:
    assert "Queue the first experiment" in text_of(signed_in.get("/experiments/"))


def test_the_list_has_state_title_models_and_author(signed_in: Any, member: Any) -> None:
    put(member, vary={"field": "model", "values": ["olmoe-1b-7b", "mixtral-8x7b"]}, title="Two models")
    assert "queued Two models olmoe-1b-7b, mixtral-8x7b 4 anna" in text_of(signed_in.get("/experiments/"))


@pytest.mark.parametrize("count", [1, 30])
def test_the_list_is_paged_and_its_queries_do_not_grow(
    signed_in: Any, member: Any, count: int, django_assert_num_queries: Any
) -> None:
    for number in range(count):
        put(member, title=f"Number {number}")
    with django_assert_num_queries(4):  # session, user; count, rows
        page = text_of(signed_in.get("/experiments/"))
    assert f"Number {count - 1}" in page
    assert ("page 1 of 2, 30 experiments Older" in page) == (count == 30)
    assert "Number 0" in text_of(signed_in.get("/experiments/?page=2"))


# The experiment's page


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
    assert "60% about 40 s at this pace" in text
    assert text.count("so far") == 1
    assert "gate_up baseline" in text
    assert f'hx-get="{row.get_absolute_url()}live/" hx-trigger="every 1s"' in response.content.decode()


def test_the_live_part_is_the_same_fragment(signed_in: Any, member: Any) -> None:
    row = measuring(member)
    page = signed_in.get(row.get_absolute_url()).content.decode()
    part = signed_in.get(f"{row.get_absolute_url()}live/", HTTP_HX_REQUEST="true").content.decode()
    assert "<html" not in part
    shared = part[part.index('<div id="live"') :].strip().removesuffix("</div>")
    assert re.sub(r"\s+", " ", shared)[:2000] in re.sub(r"\s+", " ", page)
    assert "<title>60% · Fusion · Moescope</title>" in part
    assert 'id="actions" hx-swap-oob="true"' in part


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
    sections = ["gate_up has the shortest", "Step time", "Where a step's time goes", "One run", "Requests", "How sure",
                "What was asked", "Where it ran", "Reproduce"]  # fmt: skip
    places = [text.index(section) for section in sections]
    assert places == sorted(places)
    for shown in ("×16", "1×16", "4×64", "equals the reference", "Weights are random.", "kernels.fusion", "f00d",
                  f"python -m bench_worker run experiment-{row.pk}.json --out result-{row.pk}.json"):  # fmt: skip
        assert shown in text, shown
    assert response.content.decode().count("<h1") == 1


def test_every_chart_has_its_configuration_and_a_table(signed_in: Any, member: Any) -> None:
    page = signed_in.get(done(member).get_absolute_url()).content.decode()
    charts = re.findall(r'<canvas data-chart="([\w-]+)" role="img" aria-label="[^"]+"', page)
    assert charts == ["stages-0", "stages-1", "timeline"]
    for name in charts:
        found = re.search(rf'<script id="{name}" type="application/json">(.*?)</script>', page, re.DOTALL)
        assert found is not None
        assert json.loads(found[1])["type"] == "bar"
        assert page.index("<table", found.end()) > 0


def test_another_run_is_chosen_in_the_address(signed_in: Any, member: Any) -> None:
    row = done(member)
    assert "One run gate_up at 1×16" in text_of(signed_in.get(row.get_absolute_url()))
    assert "One run none at 4×64" in text_of(signed_in.get(f"{row.get_absolute_url()}?run=3"))
    assert "One run gate_up at 1×16" in text_of(signed_in.get(f"{row.get_absolute_url()}?run=no"))


@pytest.mark.parametrize("corners", [1, 6])
def test_the_pages_queries_do_not_grow_with_the_runs(
    signed_in: Any, member: Any, corners: int, django_assert_num_queries: Any
) -> None:
    row = done(member, conditions=[{"concurrency": 1, "prompt_tokens": 16 + n} for n in range(corners)])
    with django_assert_num_queries(6):  # session, user; experiment, runs; the chosen run's series and requests
        signed_in.get(row.get_absolute_url())


def test_a_wrong_result_is_named_and_has_no_times(signed_in: Any, member: Any) -> None:
    text = text_of(signed_in.get(done(member, wrong=frozenset(["none"])).get_absolute_url()))
    assert "none wrong result wrong result" in text
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
    assert "It had ended before it could be canceled." in text_of(page)


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
    "page", ["/", "/experiments/", "/experiments/1/", "/experiments/1/live/", "/experiments/1/result/"]
)
def test_every_page_asks_to_sign_in(client: Any, page: str) -> None:
    assert client.get(page).status_code == 302
