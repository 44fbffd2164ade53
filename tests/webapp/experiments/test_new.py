"""The form: the same check and the same words as the command line, beside the field, and nothing typed is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from bench_worker.spec import Library, SpecError, parse_experiment
from bench_worker.strategies import NON_CAUSAL, STRATEGIES
from tests.webapp.experiments import make
from tests.webapp.experiments.rows import text_of
from webapp.experiments import fields, machines, queue
from webapp.experiments.forms import ExperimentForm
from webapp.experiments.models import Experiment, State
from webapp.traces.models import Recording
from webapp.traces.recording_store import import_recording, recording_files
from webapp.traces.store import import_trace

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]
NEW = "/experiments/new/"
PLAN = "/experiments/new/plan/"
AS_JSON = "/experiments/new/?as=json"


def texts(**changes: str) -> dict[str, str]:
    """What the form sends when nothing was touched, and ``changes``."""
    form = ExperimentForm(library=Library())
    return {name: str(form[name].value() or "") for name in form.fields} | changes


def errors_at(response: Any, field: str) -> list[str]:
    return list(response.context["form"].errors.get(field, []))


def test_the_untouched_form_queues_the_four_corners(signed_in: Any, member: Any) -> None:
    response = signed_in.post(NEW, texts())
    row = Experiment.objects.get()
    assert response.url == row.get_absolute_url()
    assert (row.title, row.state, row.author) == ("olmoe-1b-7b", State.QUEUED, member)
    assert [planned["condition"] for planned in row.plan] == ["1×128", "16×128", "1×2048", "16×2048"]


def test_every_field_reaches_the_document(signed_in: Any) -> None:
    signed_in.post(
        NEW,
        texts(
            title="Mine", model="mixtral-8x7b", layers="2", top_k="1", capacity_factor="1.25", scoring="sigmoid",
            renormalize="false", route_scale="2.5", bias="0, -1, 0, 0, 0, 0, 0, 0.5", dtype="float32", fusion="none",
            threads="2", attention="false", profile="uniform", skew="0.5", correlation="0.25", trace="code",
            requests="7", concurrency="2", prompt_tokens="", output_tokens="", max_batch_tokens="512", seed="3",
            warmup_steps="0", repeats="2", max_seconds="60", vary_field="kernels.threads", vary_values="1, 2",
        ),
    )  # fmt: skip
    document = Experiment.objects.get().document
    base = document["base"]
    assert (document["title"], base["model"], base["layers"]) == ("Mine", "mixtral-8x7b", 2)
    routing = {"strategy": "token_choice", "top_k": 1, "capacity_factor": 1.25, "scoring": "sigmoid",
               "renormalize": False, "route_scale": 2.5, "bias": [0, -1, 0, 0, 0, 0, 0, 0.5]}  # fmt: skip
    assert {name: value for name, value in base["routing"].items() if value is not None} == routing
    assert base["load"] == {"profile": "uniform", "skew": 0.5, "recording": None, "correlation": 0.25}
    assert (base["kernels"]["dtype"], base["kernels"]["fusion"], base["kernels"]["threads"]) == ("float32", "none", 2)
    assert base["kernels"]["attention"] is False
    workload = {"trace": "code", "requests": 7, "max_batch_tokens": 512, "seed": 3, "prompt_tokens": None}
    assert base["workload"].items() >= workload.items()
    assert [condition["concurrency"] for condition in document["conditions"]] == [2]
    assert document["measure"] == {"warmup_steps": 0, "repeats": 2, "max_seconds": 60}
    assert document["vary"] == {"field": "kernels.threads", "values": [1, 2]}


BAD = [
    ("model", {"model": "gpt-5"}, {"base": {"model": "gpt-5"}}),
    ("model", {"model": "../config.json"}, {"base": {"model": "../config.json"}}),
    ("layers", {"layers": "0"}, {"base": {"model": "olmoe-1b-7b", "layers": 0}}),
    ("layers", {"layers": "17"}, {"base": {"model": "olmoe-1b-7b", "layers": 17}}),
    ("layers", {"layers": "one"}, {"base": {"model": "olmoe-1b-7b", "layers": "one"}}),
    ("layers", {"layers": "1.5"}, {"base": {"model": "olmoe-1b-7b", "layers": 1.5}}),
    ("top_k", {"top_k": "65"}, {"base": {"model": "olmoe-1b-7b", "routing": {"top_k": 65}}}),
    ("dtype", {"dtype": "float8"}, {"base": {"model": "olmoe-1b-7b", "kernels": {"dtype": "float8"}}}),
    ("capacity_factor", {"capacity_factor": "0"},
     {"base": {"model": "olmoe-1b-7b", "routing": {"capacity_factor": 0}}}),
    ("top_p", {"strategy": "dynamic", "top_p": "1.5"},
     {"base": {"model": "olmoe-1b-7b", "routing": {"strategy": "dynamic", "top_p": 1.5}}}),
    ("num_groups", {"strategy": "group_limited", "num_groups": "7"},
     {"base": {"model": "olmoe-1b-7b", "routing": {"strategy": "group_limited", "num_groups": 7}}}),
    ("topk_groups", {"strategy": "group_limited", "num_groups": "32", "topk_groups": "3"},
     {"base": {"model": "olmoe-1b-7b", "routing": {"strategy": "group_limited", "num_groups": 32, "topk_groups": 3}}}),
    ("bias", {"bias": "1, 2"}, {"base": {"model": "olmoe-1b-7b", "routing": {"bias": [1, 2]}}}),
    ("correlation", {"correlation": "1"}, {"base": {"model": "olmoe-1b-7b", "load": {"correlation": 1}}}),
    ("concurrency", {"concurrency": "-1"}, {"conditions": [{"concurrency": -1, "prompt_tokens": 128}]}),
    ("concurrency", {"concurrency": "1, two"}, {"conditions": [{"concurrency": 1}, {"concurrency": "two"}]}),
    ("prompt_tokens", {"prompt_tokens": "0"}, {"conditions": [{"concurrency": 1, "prompt_tokens": 0}]}),
    ("prompt_tokens", {"prompt_tokens": "1000001"}, {"conditions": [{"concurrency": 1, "prompt_tokens": 1000001}]}),
    ("trace", {"trace": "mine"}, {"base": {"model": "olmoe-1b-7b", "workload": {"trace": "mine"}}}),
    ("trace", {"trace": "/etc/passwd"}, {"base": {"model": "olmoe-1b-7b", "workload": {"trace": "/etc/passwd"}}}),
    ("arrivals", {"arrivals": "batch"},
     {"base": {"model": "olmoe-1b-7b", "workload": {"arrivals": "batch"}}}),
    ("rate", {"arrivals": "poisson"}, {"base": {"model": "olmoe-1b-7b", "workload": {"arrivals": "poisson"}}}),
    ("rate", {"arrivals": "poisson", "rate": "1, 0"},
     {"base": {"model": "olmoe-1b-7b", "workload": {"arrivals": "poisson"}},
      "conditions": [{"rate": 1}, {"rate": 0}]}),
    ("speedup", {"arrivals": "trace", "speedup": "-2"},
     {"base": {"model": "olmoe-1b-7b", "workload": {"arrivals": "trace"}}, "conditions": [{"speedup": -2}]}),
    ("kv_tokens", {"kv_tokens": "0"}, {"base": {"model": "olmoe-1b-7b", "workload": {"kv_tokens": 0}}}),
    ("limit_tpot_ms", {"limit_tpot_ms": "soon"},
     {"base": {"model": "olmoe-1b-7b", "workload": {"limits": {"tpot_ms": "soon"}}}}),
    ("limit_e2e_ms", {"limit_e2e_ms": "0"},
     {"base": {"model": "olmoe-1b-7b", "workload": {"limits": {"e2e_ms": 0}}}}),
    ("seed", {"seed": "-1"}, {"base": {"model": "olmoe-1b-7b", "workload": {"seed": -1}}}),
    ("max_seconds", {"max_seconds": "0"}, {"measure": {"max_seconds": 0}}),
    ("vary_field", {"vary_field": "topk", "vary_values": "1"}, {"vary": {"field": "topk", "values": [1]}}),
    ("vary_values", {"vary_field": "layers"}, {"vary": {"field": "layers"}}),
    ("vary_values", {"vary_field": "routing.top_k", "vary_values": "8, 65"},
     {"vary": {"field": "routing.top_k", "values": [8, 65]}}),
    ("vary_values", {"vary_field": "routing.strategy", "vary_values": "token_choice, sinkhorn"},
     {"vary": {"field": "routing.strategy", "values": ["token_choice", "sinkhorn"]}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "typed", "document"),
    BAD,
    ids=[f"{field}={typed.get(field)}" for field, typed, _ in BAD],
)
def test_a_bad_value_is_refused_beside_its_field_in_the_words_of_the_command_line(
    signed_in: Any, field: str, typed: dict[str, str], document: dict[str, Any]
) -> None:
    document = {"schema": 1, "base": {"model": "olmoe-1b-7b", "workload": {"output_tokens": 16}}} | document
    with pytest.raises(SpecError) as refused:
        parse_experiment(json.dumps(document).encode(), Library())
    response = signed_in.post(NEW, texts(**typed))
    assert response.status_code == 422
    assert refused.value.message in errors_at(response, field)
    assert not Experiment.objects.exists()

    page = unescape(response.content.decode())
    assert refused.value.message in page
    control = next(line for line in page.splitlines() if f'name="{field}"' in line)
    assert 'aria-invalid="true"' in control
    assert f'id="id_{field}_error"' in page
    assert f"id_{field}_error" in control


def test_all_that_is_wrong_is_said_at_once(signed_in: Any) -> None:
    response = signed_in.post(NEW, texts(layers="0", seed="x", skew="9"))
    assert set(response.context["form"].errors) == {"layers", "seed", "skew"}


def test_nothing_typed_is_lost(signed_in: Any) -> None:
    typed = texts(layers="none at all", vary_values="a, <b>", title="Not yet", concurrency="1, 2,,", seed="7")
    page = signed_in.post(NEW, typed)
    form = page.context["form"]
    assert {name: form[name].value() for name in typed} == typed
    assert 'value="none at all"' in page.content.decode()
    assert "a, &lt;b&gt;" in page.content.decode()


def test_the_command_line_says_the_same(tmp_path: Path) -> None:
    """Through the real program: its error line is the field and the form's sentence."""
    file = tmp_path / "experiment.json"
    file.write_text(json.dumps({"schema": 1, "base": {"model": "olmoe-1b-7b", "layers": 17}}))
    said = subprocess.run(
        [sys.executable, "-m", "bench_worker", "run", str(file)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    form = ExperimentForm(texts(layers="17"), library=Library())
    assert json.loads(said.stderr)["message"] == f"base.layers: {form.errors['layers'][0]}"


def test_only_what_is_built_is_offered(signed_in: Any) -> None:
    form = signed_in.get(NEW).context["form"]
    offered = {name: [value for value, _ in form.fields[name].widget.choices] for name in ("fusion", "profile")}
    assert offered == {"fusion": ["none", "gate_up", "whole"], "profile": ["uniform", "zipf", "recorded"]}


def test_imported_traces_are_offered_by_name(signed_in: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n")
    import_trace(tmp_path / "mine.csv")
    form = signed_in.get(NEW).context["form"]
    assert [value for value, _ in form.fields["trace"].widget.choices] == ["conversation", "code", "mine"]
    signed_in.post(NEW, texts(trace="mine", requests="1"))
    assert Experiment.objects.get().document["base"]["workload"]["trace"] == "mine"


# Routing


@pytest.mark.parametrize(
    ("strategy", "typed"),
    [
        ("dynamic", {"top_p": "0.6", "max_experts": "12"}),
        ("balanced", {"solver": "exact"}),
        ("soft", {"slots_per_expert": "2"}),
        ("group_limited", {"num_groups": "8", "topk_groups": "3", "group_score": "max"}),
    ],
)
def test_a_strategys_own_parameters_reach_the_document(signed_in: Any, strategy: str, typed: dict[str, str]) -> None:
    signed_in.post(NEW, texts(strategy=strategy, **typed))
    routing = Experiment.objects.get().document["base"]["routing"]
    given = {name: value for name, value in routing.items() if value is not None}
    assert given == {"strategy": strategy} | {name: fields.values_of(text)[0] for name, text in typed.items()}


def test_what_the_chosen_strategy_has_no_use_for_is_left_out_and_kept_in_the_form(signed_in: Any) -> None:
    typed = texts(strategy="hash", capacity_factor="1.25", top_p="nonsense", layers="0")
    form = signed_in.post(NEW, typed).context["form"]
    assert set(form.errors) == {"layers"}
    assert (form["capacity_factor"].value(), form["top_p"].value()) == ("1.25", "nonsense")
    signed_in.post(NEW, typed | {"layers": "1"})
    assert Experiment.objects.get().document["base"]["routing"]["capacity_factor"] is None


def test_one_click_compares_all_strategies_and_loses_nothing(signed_in: Any) -> None:
    response = signed_in.post(NEW, texts(title="Mine", layers="2", vary_field="layers") | {"compare": "strategies"})
    form = response.context["form"]
    assert response.status_code == 200
    assert (form["vary_field"].value(), form["title"].value(), form["layers"].value()) == (
        "routing.strategy", "Mine", "2",
    )  # fmt: skip
    assert not Experiment.objects.exists()
    signed_in.post(NEW, {name: str(form[name].value() or "") for name in form.fields})
    assert Experiment.objects.get().document["vary"] == {"field": "routing.strategy", "values": list(STRATEGIES)}


def test_strategies_that_look_ahead_are_marked_with_the_reason(signed_in: Any) -> None:
    form = signed_in.get(NEW).context["form"]
    marked = {value for value, text in form.fields["strategy"].widget.choices if text == f"{value} (non-causal)"}
    assert marked == {"expert_choice", "soft"}
    page = unescape(signed_in.get(NEW).content.decode())
    assert page.count(f"<strong>Non-causal</strong>: {NON_CAUSAL}.") == 2
    part = signed_in.post(PLAN, texts(vary_field="routing.strategy"), HTTP_HX_REQUEST="true").content.decode()
    assert f"Non-causal: expert_choice and soft; {NON_CAUSAL}." in unescape(part)


def test_the_stylesheet_knows_every_strategy() -> None:
    """It decides which parameters are seen, with and without scripts."""
    style = (Path(__file__).parents[3] / "webapp/ui/static/moescope/moescope.css").read_text()
    for name in STRATEGIES:
        assert f'#id_strategy > [value="{name}"]:checked) [data-takers~="{name}"]' in style


# Recorded load


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    (tmp_path / "arxiv.json").write_text(json.dumps({"counts": [[1] * 64], "top_k": 8}))
    return import_recording([tmp_path / "arxiv.json"])[0]


def test_an_imported_recording_is_offered_and_reaches_the_experiment(signed_in: Any, recording: Recording) -> None:
    form = signed_in.get(NEW).context["form"]
    assert form.fields["recording"].widget.choices == [("", "none"), ("arxiv", "arxiv")]
    signed_in.post(NEW, texts(profile="recorded", recording="arxiv"))
    row = Experiment.objects.get()
    assert row.document["base"]["load"].items() >= {"profile": "recorded", "recording": "arxiv"}.items()
    assert list(row.recordings.all()) == [recording]
    assert signed_in.get(f"{NEW}?from={row.pk}").context["form"]["recording"].value() == "arxiv"


def test_recordings_may_be_what_changes(signed_in: Any, recording: Recording, tmp_path: Path) -> None:
    (tmp_path / "c4.json").write_text(json.dumps({"counts": [[2] * 64]}))
    other, _ = import_recording([tmp_path / "c4.json"])
    typed = texts(profile="recorded", recording="arxiv", vary_field="load.recording", vary_values="arxiv, c4")
    signed_in.post(NEW, typed)
    assert set(Experiment.objects.get().recordings.all()) == {recording, other}


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ({"profile": "recorded"}, "is missing; the profile recorded replays one"),
        ({"profile": "recorded", "recording": "gone"}, "'gone' is not one of arxiv"),
        ({"recording": "arxiv"}, "'arxiv' has no use with zipf; leave it empty, or set profile to recorded"),
        ({"profile": "recorded", "recording": "arxiv", "model": "mixtral-8x7b"},
         "arxiv: holds 64 experts; mixtral-8x7b has 8"),
    ],
)  # fmt: skip
def test_a_recording_that_can_not_be_replayed_is_refused_beside_it(
    signed_in: Any, recording: Recording, typed: dict[str, str], sentence: str
) -> None:
    response = signed_in.post(NEW, texts(**typed))
    assert response.status_code == 422
    assert errors_at(response, "recording") == [sentence]
    assert not Experiment.objects.exists()
    assert "Shown once the experiment can be run." in signed_in.post(PLAN, texts(**typed)).content.decode()


def test_the_command_line_refuses_a_misfit_in_the_same_words(recording: Recording, tmp_path: Path) -> None:
    file = tmp_path / "experiment.json"
    load = {"profile": "recorded", "recording": "arxiv"}
    file.write_text(json.dumps({"schema": 1, "base": {"model": "mixtral-8x7b", "load": load}}))
    recording_files([recording], tmp_path)
    command = [sys.executable, "-m", "bench_worker", "run", str(file), "--recordings", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    message = json.loads(said.stderr.splitlines()[-1])["message"]
    assert message == "base.load.recording: arxiv: holds 64 experts; mixtral-8x7b has 8"


# The document itself


def test_a_pasted_document_is_queued(signed_in: Any) -> None:
    signed_in.post(AS_JSON, {"document": json.dumps(make.document())})
    assert Experiment.objects.get().document == make.experiment().document()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"schema": 2, "base": {"model": "olmoe-1b-7b"}}', '{"schema": 1}',
        '{"schema": 1, "base": {"model": "olmoe-1b-7b", "layer": 1}}', '{"schema": 1, "base": {"model": "no"}}',
    ],
)  # fmt: skip
def test_a_bad_document_is_refused_in_the_words_of_the_command_line(signed_in: Any, text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_experiment(text.encode(), Library())
    response = signed_in.post(AS_JSON, {"document": text})
    assert response.status_code == 422
    assert errors_at(response, "document") == [str(problem) for problem in refused.value.errors]
    assert response.context["form"]["document"].value() == text
    assert not Experiment.objects.exists()


def test_ten_megabytes_are_refused_in_one_sentence(signed_in: Any) -> None:
    response = signed_in.post(AS_JSON, {"document": " " * 10_000_000})
    assert response.status_code == 413
    assert "at most" in response.content.decode()


# Both ways


def test_the_form_turns_into_its_document_and_back(signed_in: Any) -> None:
    typed = texts(vary_field="routing.top_k", vary_values="default, 4, 2", prompt_tokens="128", title="K")
    as_json = signed_in.post(NEW, typed | {"switch": "json"})
    text = as_json.context["form"]["document"].value()
    assert json.loads(text)["vary"] == {"field": "routing.top_k", "values": [None, 4, 2]}
    back = signed_in.post(AS_JSON, {"document": text, "switch": "form"}).context["form"]
    assert {name: str(back[name].value() or "") for name in typed} == typed
    assert not Experiment.objects.exists()


def test_a_document_beyond_the_form_stays_a_document(signed_in: Any) -> None:
    text = json.dumps(make.document(conditions=[{"requests": 2}, {"requests": 3}]))
    response = signed_in.post(AS_JSON, {"document": text, "switch": "form"})
    assert errors_at(response, "document") == ["The form has no fields for some of this; queue it from here."]
    assert response.context["form"]["document"].value() == text


def test_a_wrong_document_is_not_turned_into_a_form(signed_in: Any) -> None:
    response = signed_in.post(AS_JSON, {"document": "{", "switch": "form"})
    assert errors_at(response, "document")[0].startswith("experiment: the document is not valid JSON")


def test_a_clone_starts_from_the_other_experiments_fields(signed_in: Any, member: Any) -> None:
    conditions = [{"concurrency": users, "prompt_tokens": tokens} for tokens in (16, 64) for users in (1, 4)]
    row = queue.enqueue(make.experiment(conditions=conditions), author=member)
    form = signed_in.get(f"{NEW}?from={row.pk}").context["form"]
    assert (form["title"].value(), form["vary_values"].value()) == ("Fusion", "gate_up, none")
    assert (form["concurrency"].value(), form["prompt_tokens"].value()) == ("1, 4", "16, 64")


def test_a_clone_of_what_the_form_can_not_say_starts_from_the_document(signed_in: Any, member: Any) -> None:
    row = queue.enqueue(make.experiment(conditions=[{"requests": 2}]), author=member)
    form = signed_in.get(f"{NEW}?from={row.pk}").context["form"]
    assert json.loads(form["document"].value()) == row.document


def test_a_clone_names_where_it_comes_from_and_leaves_it_alone(signed_in: Any, member: Any) -> None:
    row = queue.enqueue(make.experiment(), author=member)
    response = signed_in.get(f"{NEW}?from={row.pk}&as=json")
    assert json.loads(response.context["form"]["document"].value()) == row.document
    assert f'Starts from <a href="{row.get_absolute_url()}">Fusion</a>' in response.content.decode()
    signed_in.post(f"{NEW}?from={row.pk}", texts(title="Mine"))
    assert set(Experiment.objects.values_list("title", flat=True)) == {"Fusion", "Mine"}


@pytest.mark.parametrize("source", ["99", "x", "9" * 30, "-1"])
def test_a_clone_of_nothing_is_not_found_or_starts_empty(signed_in: Any, source: str) -> None:
    assert signed_in.get(f"{NEW}?from={source}").status_code == (404 if source == "99" else 200)


# Where it runs


@pytest.fixture
def two_pools() -> None:
    machines.register_this(make.MACHINE, "cuda")


def test_without_a_choice_no_pool_is_asked_for(signed_in: Any) -> None:
    machines.register_this(make.MACHINE, "default")
    assert "pool" not in signed_in.get(NEW).context["form"].fields
    signed_in.post(NEW, texts(pool="elsewhere"))
    assert Experiment.objects.get().pool == "default"


@pytest.mark.parametrize("address", [NEW, AS_JSON])
def test_the_pools_that_were_seen_are_offered(signed_in: Any, two_pools: None, address: str) -> None:
    form = signed_in.get(address).context["form"]
    assert form.fields["pool"].choices == [("cuda", "cuda"), ("default", "default")]
    assert form["pool"].value() == "default"


@pytest.mark.parametrize(
    ("address", "sent"),
    [(NEW, texts(pool="cuda")), (AS_JSON, {"document": json.dumps(make.document()), "pool": "cuda"})],
)
def test_the_experiment_waits_in_the_chosen_pool(signed_in: Any, two_pools: None, address: str, sent: Any) -> None:
    signed_in.post(address, sent)
    assert Experiment.objects.get().pool == "cuda"


def test_a_pool_that_is_not_offered_is_refused(signed_in: Any, two_pools: None) -> None:
    response = signed_in.post(NEW, texts(pool="elsewhere"))
    assert errors_at(response, "pool") == ["elsewhere is not one of cuda, default."]
    assert not Experiment.objects.exists()


def test_what_fits_is_asked_of_the_chosen_pool(signed_in: Any) -> None:
    machines.register_this(make.MACHINE, "default")
    machines.register_this(make.MACHINE | {"fingerprint": "small", "memory_bytes": 1_000_000_000}, "small")
    assert "The measurement does not fit" in signed_in.post(PLAN, texts(pool="small")).content.decode()
    assert "It does not fit" not in signed_in.post(PLAN, texts(pool="default")).content.decode()
    assert signed_in.post(NEW, texts(pool="small")).status_code == 422


def test_the_pool_stays_chosen_from_the_form_to_the_document_and_in_a_clone(signed_in: Any, two_pools: None) -> None:
    switched = signed_in.post(NEW, texts(pool="cuda") | {"switch": "json"}).context["form"]
    assert switched["pool"].value() == "cuda"
    row = queue.enqueue(make.experiment(), author=None, pool="cuda")
    assert signed_in.get(f"{NEW}?from={row.pk}").context["form"]["pool"].value() == "cuda"


# What it takes


def test_the_page_says_what_the_untouched_form_takes(signed_in: Any) -> None:
    outlook = signed_in.get(NEW).context["outlook"]
    assert (outlook.runs, outlook.variants, outlook.corners) == (4, 1, 4)
    assert outlook.deployment.weights_bytes == 2 * 6_919_161_856
    assert (outlook.machine, outlook.device_bytes, outlook.fits) == (None, None, True)


def test_it_follows_the_form_and_names_the_machine(signed_in: Any) -> None:
    machines.register_this(make.MACHINE, "default")
    part = signed_in.post(PLAN, texts(vary_field="kernels.fusion", vary_values="gate_up, none")).content.decode()
    assert '8 <span class="muted">2 variants × 4 corners</span>' in part
    assert "of 64.0\N{NO-BREAK SPACE}GB on test bench" in part
    assert "<html" not in part
    assert not Experiment.objects.exists()


def test_it_follows_the_document_too(signed_in: Any) -> None:
    sent = {"document": json.dumps(make.document())}
    part = signed_in.post(f"{PLAN}?as=json", sent, HTTP_HX_REQUEST="true").content.decode()
    assert '4 <span class="muted">2 variants × 2 corners</span>' in part
    assert "id_vary_values_helptext" not in part


def test_it_says_beforehand_that_something_does_not_fit(signed_in: Any) -> None:
    machines.register_this(make.MACHINE | {"memory_bytes": 1_000_000_000}, "default")
    response = signed_in.post(PLAN, texts())
    assert "The measurement does not fit" in response.content.decode()


@pytest.mark.parametrize("typed", [{"layers": "0"}, {"model": "no"}, {"trace": "mine"}])
def test_it_waits_for_something_that_can_be_run(signed_in: Any, typed: dict[str, str]) -> None:
    response = signed_in.post(PLAN, texts(**typed))
    assert "Shown once the experiment can be run." in response.content.decode()


def test_the_values_of_a_closed_field_are_named(signed_in: Any) -> None:
    """The help of the values changes with the variable, in the same answer."""
    response = signed_in.post(PLAN, texts(vary_field="kernels.dtype"), HTTP_HX_REQUEST="true")
    assert "Of float32, bfloat16, float16." in response.content.decode()
    assert 'id="id_vary_values_helptext" hx-swap-oob="true"' in response.content.decode()


# Which kernels

WITHOUT = make.MACHINE | {"backends": make.backends("zentorch")}
AWAY = "can't run: it is not installed here"


def missing(response: Any) -> list[tuple[str, str, bool]]:
    return [(one.field, one.value, one.everywhere) for one in response.context["missing"]]


def test_kernels_that_no_machine_of_the_pool_can_run_are_listed_with_why(signed_in: Any) -> None:
    of_model, of_kernels = ("experts", "deepspeed_layer", True), ("fusion", "whole", True)
    assert missing(signed_in.get(NEW)) == [of_model, of_kernels]
    machines.register_this(WITHOUT, "default")
    response = signed_in.get(NEW)
    assert missing(response) == [("experts", "zentorch", True), of_model, of_kernels]
    page = unescape(response.content.decode())
    assert ">'zentorch' can't run: it is not installed here.</li>" in page
    assert 'data-field="experts" data-value="zentorch" data-everywhere' in page


def test_the_list_follows_the_chosen_kernels_and_pool(signed_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.register_this(WITHOUT, "default")
    machines.register_this(make.MACHINE | {"backends": make.backends()}, "cuda")
    monkeypatch.setattr(machines.socket, "gethostname", lambda: "another")
    machines.register_this(WITHOUT, "cuda")
    asked = {"model": "qwen3-30b-a3b", "experts": "zentorch"}  # a model that every backend can compute
    assert missing(signed_in.post(PLAN, texts(**asked, pool="default"))) == [("experts", "zentorch", True)]
    part = signed_in.post(PLAN, texts(**asked, pool="cuda"))
    assert missing(part) == [("experts", "zentorch", False)]
    assert "On 1 of 2 machines: " in part.content.decode()


def test_kernels_that_can_not_run_are_refused_beside_their_field(signed_in: Any) -> None:
    machines.register_this(WITHOUT, "default")
    response = signed_in.post(NEW, texts(experts="zentorch"))
    assert errors_at(response, "experts") == [f"'zentorch' {AWAY}"]
    response = signed_in.post(NEW, texts(experts="loop", fusion="whole"))
    assert errors_at(response, "fusion") == ["'whole' is not something 'loop' can do; use none or gate_up"]
    response = signed_in.post(NEW, texts(vary_field="kernels.experts", vary_values="loop, zentorch"))
    assert errors_at(response, "vary_values") == [f"'zentorch' {AWAY}"]
    assert not Experiment.objects.exists()
    signed_in.post(NEW, texts(experts="auto"))
    assert Experiment.objects.get().document["base"]["kernels"]["experts"] == "auto"


def test_a_document_is_refused_in_the_same_words(signed_in: Any) -> None:
    machines.register_this(WITHOUT, "default")
    base = {"model": "olmoe-1b-7b", "kernels": {"experts": "zentorch"}}
    response = signed_in.post(AS_JSON, {"document": json.dumps(make.document(base=base, vary=None))})
    assert errors_at(response, "document") == [f"base.kernels.experts: 'zentorch' {AWAY}"]


def test_it_asks_to_sign_in(client: Any) -> None:
    assert client.get(NEW).status_code == 302
    assert client.post(NEW, texts()).status_code == 302
    assert not Experiment.objects.exists()


def test_every_field_has_its_help(signed_in: Any) -> None:
    for field in signed_in.get(NEW).context["form"]:
        assert field.help_text, field.name
        assert field.help_text.endswith("."), field.name


def test_the_page_has_one_heading(signed_in: Any) -> None:
    for address in (NEW, AS_JSON):
        assert signed_in.get(address).content.decode().count("<h1") == 1


def test_names_of_pages() -> None:
    assert reverse("experiments:new") == NEW


@pytest.mark.parametrize("count", [1, 12])
def test_the_queries_do_not_grow(
    signed_in: Any, member: Any, count: int, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(count):
        monkeypatch.setattr(machines.socket, "gethostname", lambda number=number: f"host {number}")
        machines.register_this(make.MACHINE, f"pool {number % 3}")
        row = queue.enqueue(make.experiment(), author=member)
    # session, user; traces, recordings, pools; the trace, the pool's machines twice, those like it
    with django_assert_num_queries(9):
        signed_in.get(NEW)
    with django_assert_num_queries(9):
        signed_in.post(PLAN, texts())
    with django_assert_num_queries(9):  # and the experiment to start from, whose kernels the document asks for
        signed_in.get(f"{NEW}?from={row.pk}")


RANKS = {"mode": "virtual", "tp": "2", "dp": "4", "nodes": "2", "attention": "false"}


def test_the_form_draws_its_ranks(signed_in: Any) -> None:
    page = signed_in.get(NEW).content.decode()
    assert "One rank holds all 64 experts." in page
    page = signed_in.post(PLAN, texts(**RANKS), headers={"HX-Request": "true"}).content.decode()
    assert '<div id="layout" hx-swap-oob="true">' in page
    assert "8 ranks on 2 nodes: attention in 4 groups of 2 (TP 2 × DP 4), 64 experts over all of them (EP 8)." in page
    assert 'title="Rank 7: experts 56–63"' in page


def test_ranks_that_cannot_stand_so_are_drawn_with_the_reason(signed_in: Any) -> None:
    page = unescape(signed_in.post(PLAN, texts(**RANKS | {"dp": "3"}), headers={"HX-Request": "true"}).content.decode())
    assert "6 ranks don't divide 64 experts (64 and 0 redundant); 2 more redundant ones would" in page
    assert "Shown once the experiment can be run." in page
    assert "base.parallel.layout" in page


@pytest.mark.parametrize("changes", [{"model": "nobody"}, {"mode": "virtual", "tp": "many"}])
def test_without_a_model_or_numbers_there_is_nothing_to_draw(signed_in: Any, changes: dict[str, str]) -> None:
    assert 'class="layout"' not in signed_in.post(NEW, texts(**changes)).content.decode()


def test_the_form_says_what_redundant_experts_take(signed_in: Any) -> None:
    """One more expert a rank in each of 16 layers: 3 · 2048 · 1024 · 2 bytes each."""
    page = text_of(signed_in.post(PLAN, texts(**RANKS, redundant_experts="8")))
    assert "8 redundant experts take 201 MB on each rank as much as the KV cache of 3,072 tokens there" in page.replace(
        "\xa0", " "
    )
    assert "redundant expert" not in text_of(signed_in.post(PLAN, texts(**RANKS)))
