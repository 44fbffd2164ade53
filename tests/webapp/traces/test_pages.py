"""The traces room: what is there, what comes in, and what may go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from bench_worker.workload.recordings import from_ids, read_recording, write_recording
from bench_worker.workload.requests import read_trace
from tests.webapp.experiments import make
from tests.webapp.experiments.rows import text_of
from webapp import limits
from webapp.experiments import queue, upkeep
from webapp.experiments.models import Experiment
from webapp.traces import views
from webapp.traces.models import Recording, Trace
from webapp.traces.recording_store import import_recording
from webapp.traces.store import delete, import_trace

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"
COUNTS = '{"counts": [[3, 1], [2, 2]], "top_k": 1}'
TRACES, RECORDINGS = "/traces/requests/", "/traces/recordings/"


@pytest.fixture
def trace(tmp_path: Path, member: Any) -> Trace:
    file = tmp_path / "mine.csv"
    file.write_text(PLAIN + "0,1000,7\n0.30000000000000004,2000,9\n")
    return import_trace(file, by=member)[0]


@pytest.fixture
def recording(tmp_path: Path, member: Any) -> Recording:
    file = tmp_path / "load.npz"
    ids = np.array([[[0, 1], [2, 3]], [[1, 2], [0, 3]], [[3, 0], [1, 2]]])
    write_recording(file, from_ids(ids, np.array([1, 2]), 64))
    return import_recording([file], by=member)[0]


def uploaded(name: str, content: str | bytes) -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content if isinstance(content, bytes) else content.encode())


def names_it(author: Any, trace: str = "conversation", **load: str) -> Experiment:
    base = {"model": "olmoe-1b-7b", "workload": {"trace": trace, "requests": 1}, "load": load}
    asked = make.experiment(frozenset([trace]), frozenset(load.values()), base=base, title="Uses it")
    return queue.enqueue(asked, author=author)


# The list


def test_an_empty_room_says_what_will_be_here_and_has_its_forms_open(signed_in: Any) -> None:
    response = signed_in.get("/traces/")
    page, text = response.content.decode(), text_of(response)
    assert page.count("<h1") == 1
    assert page.count(" open>") == 2
    assert "Imported traces will be listed here" in text
    assert "Imported recordings will be listed here" in text
    assert "import_trace FILE" in text


def test_the_list_has_what_an_entry_is_and_who_uses_it(
    signed_in: Any, member: Any, trace: Trace, recording: Recording
) -> None:
    names_it(member, "mine")
    upkeep.delete(names_it(member, "mine").pk)
    names_it(member, profile="recorded", recording="load")
    text = text_of(signed_in.get("/traces/"))
    assert f"mine CSV 2 0 s 3,000 p50 1,500 16 p50 8 1 {trace.content_hash[:8]} anna " in text
    assert f"load 2 × 64 2 3 1 {recording.content_hash[:8]} anna " in text
    assert "conversation" in text


@pytest.mark.parametrize("count", [1, 5])
def test_the_list_reads_a_few_rows_and_never_the_bulk(
    signed_in: Any, tmp_path: Path, count: int, django_assert_num_queries: Any
) -> None:
    for number in range(count):
        (tmp_path / f"a{number}.csv").write_text(PLAIN + f"0,{number + 1},1\n")
        import_trace(tmp_path / f"a{number}.csv")
    with django_assert_num_queries(4) as queries:  # session, user, traces, recordings
        signed_in.get("/traces/")
    assert not any(bulk in query["sql"] for query in queries.captured_queries for bulk in ("packed", 'content"'))


# Import


def test_an_uploaded_trace_becomes_an_entry_with_its_name(signed_in: Any, member: Any) -> None:
    response = signed_in.post(TRACES, {"file": uploaded("My trace.csv", PLAIN + "0,10,1\n"), "name": ""}, follow=True)
    trace = Trace.objects.get()
    assert (trace.name, trace.source_file, trace.created_by) == ("my-trace", "My trace.csv", member)
    assert response.redirect_chain == [("/traces/requests/my-trace/", 302)]
    assert "Imported as my-trace." in text_of(response)


def test_the_same_content_again_is_said_and_not_stored(signed_in: Any, trace: Trace) -> None:
    again = uploaded("other.csv", PLAIN + "0,1000,7\n0.30000000000000004,2000,9\n")
    response = signed_in.post(TRACES, {"file": again, "name": "other"}, follow=True)
    assert "Nothing was stored: the same content is already here as mine." in text_of(response)
    assert Trace.objects.count() == 1


def test_the_first_requests_alone_can_be_kept(signed_in: Any) -> None:
    signed_in.post(TRACES, {"file": uploaded("a.csv", PLAIN + "0,10,1\n1,20,1\n2,30,1\n"), "first": "2"})
    assert Trace.objects.get().num_requests == 2


BAD_TRACES = [
    (b"", "a.csv: is empty"),
    (b"\x89PNG\r\n\x1a\n\0\0", "a.csv, line 1: is not UTF-8 text; a trace is a CSV or JSON lines file"),
    (PLAIN, "a.csv: has a header and no rows"),
    (PLAIN + "0,10,1\n5,10,1\n4,10,1\n", "a.csv, line 4: arrival_s '4' is earlier than in the row before"),
    (PLAIN + "0,-5,1\n", "a.csv, line 2: prompt_tokens is '-5'; it must be a whole number from 1 to 10,000,000"),
    (PLAIN + "0,5,1.5\n", "a.csv, line 2: output_tokens is '1.5'; it must be a whole number from 1 to 10,000,000"),
    (PLAIN.replace("\n", "\r\n") + "0,5,1\r1,5,1\n2,5,0\r\n",
     "a.csv, line 4: output_tokens is '0'; it must be a whole number from 1 to 10,000,000"),
    ('{"timestamp": 0, "input_length": 6, "output_length": 5}\n{"timestamp": 1, "inp',
     "a.csv, line 2: '{\"timestamp\": 1, \"inp' is not a JSON object"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374\n",
     "a.csv, line 2: has 2 columns; it must have 3"),
    ("x" * 1_000_001, "a.csv, line 1: is longer than 1,000,000 characters"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "sentence"), BAD_TRACES, ids=[sentence[:60] for _, sentence in BAD_TRACES])
def test_a_file_that_is_no_trace_gets_one_sentence_beside_it(
    signed_in: Any, content: str | bytes, sentence: str
) -> None:
    response = signed_in.post(TRACES, {"file": uploaded("a.csv", content)})
    assert response.status_code == 422
    assert dict(response.context["trace_form"].errors) == {"file": [sentence]}
    assert response.content.decode().count("<h1") == 1
    assert not Trace.objects.exists()


@pytest.mark.parametrize(
    ("field", "sent", "sentence"),
    [
        ("file", {}, "Choose a file."),
        ("name", {"name": "No Slug"}, "'No Slug' is not allowed; it must have 1 to 100 lower-case letters, digits"),
        ("name", {"name": "code"}, "'code' is a built-in trace; give a.csv another name"),
        ("name", {"name": "mine"}, "'mine' is taken by another trace; give this one another name"),
        ("first", {"first": "0"}, "Ensure this value is greater than or equal to 1."),
        ("first", {"first": "all"}, "Enter a whole number."),
    ],
)
def test_a_bad_value_is_said_beside_its_field(
    signed_in: Any, trace: Trace, field: str, sent: dict[str, str], sentence: str
) -> None:
    file = {"file": uploaded("a.csv", PLAIN + "0,10,1\n")} if field != "file" else {}
    form = signed_in.post(TRACES, file | sent).context["trace_form"]
    assert list(form.errors) == [field]
    assert form.errors[field][0].startswith(sentence)
    assert Trace.objects.count() == 1


def test_the_name_of_a_file_is_shown_and_never_trusted(signed_in: Any) -> None:
    name = "../../<b>" + "ä" * 150 + ".csv"
    form = signed_in.post(TRACES, {"file": uploaded(name, "")}).context["trace_form"]
    assert form.errors["file"][0].endswith("ä.csv: is empty")
    page = signed_in.post(TRACES, {"file": uploaded("<b>.csv", "")}).content.decode()
    assert "&lt;b&gt;.csv: is empty" in page


def test_an_uploaded_recording_becomes_an_entry(signed_in: Any, member: Any) -> None:
    response = signed_in.post(RECORDINGS, {"file": uploaded("load.json", COUNTS), "experts": "4"}, follow=True)
    recording = Recording.objects.get()
    assert (recording.name, recording.num_experts, recording.created_by) == ("load", 4, member)
    assert response.redirect_chain == [("/traces/recordings/load/", 302)]
    signed_in.post(RECORDINGS, {"file": uploaded("again.json", COUNTS), "experts": "4"})
    assert Recording.objects.count() == 1


def test_a_domain_is_chosen_in_the_form(signed_in: Any) -> None:
    content = '{"domains": {"arxiv": [[3, 1]], "c4": [[1, 3]]}}'
    form = signed_in.post(RECORDINGS, {"file": uploaded("olmoe.json", content)}).context["recording_form"]
    assert form.errors["file"] == [
        "olmoe.json: holds 2 domains; name one of arxiv, c4, as in olmoe.json#arxiv"
    ]  # fmt: skip
    form = signed_in.post(RECORDINGS, {"file": uploaded("o.json", content), "domain": "a/b"}).context["recording_form"]
    assert form.errors["domain"] == ["A domain's name has no slash."]
    signed_in.post(RECORDINGS, {"file": uploaded("olmoe.json", content), "domain": "c4"})
    assert Recording.objects.get().name == "olmoe-c4"


def test_several_files_of_one_name_are_kept_apart(signed_in: Any) -> None:
    files = [uploaded("load.json", COUNTS), uploaded("load.json", COUNTS)]
    form = signed_in.post(RECORDINGS, {"file": files}).context["recording_form"]
    assert form.errors["file"] == ["load.json: one file makes a recording, unless SGLang wrote one for each rank"]


@pytest.mark.parametrize(("address", "form"), [(TRACES, "trace_form"), (RECORDINGS, "recording_form")])
def test_htmx_gets_the_form_alone_and_moves_the_page_when_it_is_done(signed_in: Any, address: str, form: str) -> None:
    refused = signed_in.post(address, {"file": uploaded("a", "")}, HTTP_HX_REQUEST="true")
    assert refused.status_code == 422
    assert refused.content.decode().strip().startswith(f'<details id="{form}" open>')
    content = PLAIN + "0,10,1\n" if address == TRACES else COUNTS
    done = signed_in.post(address, {"file": uploaded("a", content)}, HTTP_HX_REQUEST="true")
    assert done.headers["HX-Redirect"] == f"{address}a/"


def test_a_file_above_the_limit_is_refused_by_its_announced_length(
    signed_in: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a byte of 2 GB is read."""
    monkeypatch.setattr(limits, "DRAIN_BYTES", 0)
    refused = signed_in.post(TRACES, b"", content_type="multipart/form-data; boundary=b", CONTENT_LENGTH="2000000000")
    assert refused.status_code == 413
    assert "The request has 2,000,000,000 bytes; at most 1,500,000,000 are accepted." in text_of(refused)
    monkeypatch.setattr(views.new_trace, "max_body_bytes", 2_000_000)
    large = uploaded("large.csv", PLAIN + "0,10,1\n" * 200_000)
    assert signed_in.post(TRACES, {"file": large}).status_code == 302
    larger = uploaded("larger.csv", PLAIN + "0,10,1\n" * 300_000)
    assert signed_in.post(TRACES, {"file": larger}).status_code == 413


def test_strangers_upload_nothing(client: Any) -> None:
    for address in (TRACES, RECORDINGS):
        assert client.post(address, {"file": uploaded("large.csv", "x" * 1_100_000)}).status_code == 413
        assert client.post(address, {"file": uploaded("a.csv", PLAIN + "0,10,1\n")}).status_code == 302
    assert not Trace.objects.exists()


# An entry


def test_a_traces_page_answers_how_long_and_how_often(signed_in: Any, trace: Trace) -> None:
    response = signed_in.get(trace.get_absolute_url())
    text, page = text_of(response), response.content.decode()
    assert "2 requests in 0.3 s, 6.67 a second." in text
    assert "The median prompt has 1,500 tokens, the median answer 8." in text
    assert "Prompt tokens 1,500 1,500 1,900 1,990 2,000" in text
    assert "724–1,023 1 1,024–1,447 0 1,448–2,047 1" in text
    assert trace.content_hash in text
    assert "mine.csv CSV" in text
    assert page.count("<canvas") == 3
    assert "Experiments that replay it will be listed here." in text


def test_requests_that_come_at_once_have_no_chart_of_arrivals(signed_in: Any, tmp_path: Path) -> None:
    (tmp_path / "burst.csv").write_text(PLAIN + "1,10,1\n1,20,2\n")
    page = signed_in.get(import_trace(tmp_path / "burst.csv")[0].get_absolute_url())
    assert "2 requests, all at once." in text_of(page)
    assert page.content.decode().count("<canvas") == 2


def test_a_recordings_page_says_what_it_replays_and_which_models_it_fits(signed_in: Any, recording: Recording) -> None:
    text = text_of(signed_in.get(recording.get_absolute_url()))
    assert "2 layers of 64 experts, 3 tokens one by one." in text
    assert "The hottest expert of a layer takes 21.3 to 21.3 times the mean." in text
    assert "Fits none of the presets; a model must have 64 experts and take 2 a token" in text
    assert "token by token, from 2 sequences of 3 tokens together" in text
    assert "Layer Assignments Hottest expert Its share Times the mean Never chosen 0 6 0 33% 21.3 60" in text


def test_a_counted_recording_names_its_models(signed_in: Any, tmp_path: Path) -> None:
    (tmp_path / "flat.json").write_text(json.dumps({"counts": [[5] * 64]}))
    text = text_of(signed_in.get(import_recording([tmp_path / "flat.json"])[0].get_absolute_url()))
    assert "Fits olmoe-1b-7b" in text
    assert "the file doesn't say" in text
    assert "The hottest expert takes 1.00 times the mean." in text


def test_an_entry_downloads_as_the_measuring_program_reads_it(
    signed_in: Any, trace: Trace, recording: Recording, tmp_path: Path
) -> None:
    response = signed_in.get("/traces/mine.csv")
    assert response["Content-Disposition"] == 'attachment; filename="mine.csv"'
    file = tmp_path / "downloaded.csv"
    file.write_bytes(b"".join(response.streaming_content))
    assert list(read_trace(file)) == list(trace.requests())
    response = signed_in.get("/traces/load.npz")
    assert response["Content-Disposition"] == 'attachment; filename="load.npz"'
    file.write_bytes(response.content)
    assert read_recording(file).content_hash == recording.content_hash


@pytest.mark.parametrize(
    "address", ["/traces/none.csv", "/traces/none.npz", "/traces/requests/none/", "/traces/recordings/none/"]
)
def test_an_unknown_entry_is_not_found(signed_in: Any, address: str) -> None:
    assert signed_in.get(address).status_code == 404


@pytest.mark.parametrize("count", [1, 12])
def test_a_page_lists_the_latest_experiments_in_a_few_queries(
    signed_in: Any, member: Any, trace: Trace, recording: Recording, count: int, django_assert_num_queries: Any
) -> None:
    for _ in range(count):
        names_it(member, "mine", profile="recorded", recording="load")
    for entry in (trace, recording):
        with django_assert_num_queries(5):  # session, user, the entry, its experiments, how many
            text = text_of(signed_in.get(entry.get_absolute_url()))
        assert text.count("queued Uses it") == min(count, 8)
        assert ("The latest 8 of 12." in text) == (count == 12)
        assert f"It can't be deleted: {count} experiment{'s name' if count > 1 else ' names'} it." in text


# Delete


@pytest.mark.parametrize("kind", ["trace", "recording"])
def test_what_nothing_uses_is_deleted(signed_in: Any, request: pytest.FixtureRequest, kind: str) -> None:
    entry = request.getfixturevalue(kind)
    assert f"Delete {entry.name} for good" in text_of(signed_in.get(entry.get_absolute_url()))
    response = signed_in.post(f"{entry.get_absolute_url()}delete/", follow=True)
    assert f"{entry.name} was deleted." in text_of(response)
    assert not type(entry).objects.exists()


@pytest.mark.parametrize("kind", ["trace", "recording"])
def test_what_an_experiment_names_stays_until_that_is_gone_for_good(
    signed_in: Any, member: Any, request: pytest.FixtureRequest, kind: str
) -> None:
    entry = request.getfixturevalue(kind)
    row = names_it(member, "mine") if kind == "trace" else names_it(member, profile="recorded", recording="load")
    response = signed_in.post(f"{entry.get_absolute_url()}delete/", follow=True)
    assert f"{entry.name} stays: an experiment names it." in text_of(response)
    upkeep.delete(row.pk)
    page = text_of(signed_in.get(entry.get_absolute_url()))
    assert "It can't be deleted: 1 experiment that was deleted can still be brought back." in page
    assert type(entry).objects.exists()
    Experiment.objects.all().delete()
    signed_in.post(f"{entry.get_absolute_url()}delete/")
    assert not type(entry).objects.exists()


def test_deleting_twice_does_no_harm(signed_in: Any, trace: Trace) -> None:
    also = Trace.objects.get()
    assert delete(trace)
    assert delete(also)
    assert signed_in.post("/traces/requests/mine/delete/").status_code == 404


def test_it_asks_to_sign_in(client: Any, trace: Trace) -> None:
    for address in ("/traces/", "/traces/mine.csv", trace.get_absolute_url()):
        assert client.get(address).status_code == 302
