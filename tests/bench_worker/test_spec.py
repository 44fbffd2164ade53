"""Experiments: what a document plans, how configurations differ, and what is refused as a whole."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.spec import (
    MAX_DOCUMENT_BYTES,
    Experiment,
    Layout,
    Library,
    Spec,
    SpecError,
    diff,
    flat,
    label,
    parse_experiment,
    variables,
)

OLMOE = {"model": "olmoe-1b-7b"}
EXAMPLE = {
    "schema": 1,
    "title": "Two fusions on one trace",
    "base": {
        "model": "qwen3-30b-a3b",
        "layers": 1,
        "routing": {"strategy": "token_choice", "top_k": None, "capacity_factor": None},
        "load": {"profile": "zipf", "skew": 1.0},
        "parallel": {
            "layout": {"tp": 1, "dp": 1, "nodes": 1},
            "mode": "single",
            "placement": "contiguous",
            "redundant_experts": 0,
            "topology": None,
        },
        "kernels": {
            "experts": "deepspeed",
            "fusion": "gate_up",
            "dtype": "bfloat16",
            "quantization": "none",
            "threads": None,
            "attention": True,
        },
        "workload": {
            "trace": "conversation",
            "requests": 32,
            "arrivals": "closed",
            "rate": None,
            "concurrency": 8,
            "prompt_tokens": None,
            "output_tokens": None,
            "max_batch_tokens": 2048,
            "speedup": None,
            "kv_tokens": None,
            "prefix_reuse": False,
            "limits": {"ttft_ms": None, "tpot_ms": None, "e2e_ms": None},
            "seed": 0,
        },
    },
    "vary": {"field": "kernels.fusion", "values": ["none", "gate_up"]},
    "conditions": [
        {"concurrency": 1, "prompt_tokens": 128},
        {"concurrency": 16, "prompt_tokens": 128},
        {"concurrency": 1, "prompt_tokens": 2048},
        {"concurrency": 16, "prompt_tokens": 2048},
    ],
    "measure": {"warmup_steps": 3, "repeats": 1, "max_seconds": 600},
}


def experiment(vary=None, conditions=(), library=None, **base):
    document = {"base": {**OLMOE, **base}, "conditions": list(conditions)}
    if vary is not None:
        document["vary"] = {"field": vary[0], "values": vary[1]}
    return Experiment.model_validate(document, context=library)


def errors(document, library=None):
    with pytest.raises(SpecError) as caught:
        Experiment.model_validate(document, context=library)
    return [str(error) for error in caught.value.errors]


def spec(**fields):
    return Spec.model_validate({**OLMOE, **fields})


# --- documents


def test_a_document_that_names_everything_is_taken_as_it_is():
    read = Experiment.model_validate(EXAMPLE)
    written = read.document()
    assert {key: written[key] for key in ("schema", "title", "vary", "measure")} == {
        key: EXAMPLE[key] for key in ("schema", "title", "vary", "measure")
    }
    unset = ("scoring", "renormalize", "route_scale", "bias", "top_p", "max_experts", "solver", "slots_per_expert",
             "num_groups", "topk_groups", "group_score")  # fmt: skip
    assert written["base"] == {
        **EXAMPLE["base"],
        "routing": {**EXAMPLE["base"]["routing"], **dict.fromkeys(unset)},
        "load": {"profile": "zipf", "skew": 1.0, "recording": None, "correlation": 0.0},
        "parallel": {**EXAMPLE["base"]["parallel"], "count_only": False},
    }
    assert [(c["concurrency"], c["prompt_tokens"]) for c in written["conditions"]] == [
        (1, 128), (16, 128), (1, 2048), (16, 2048)
    ]  # fmt: skip


def test_a_model_is_all_that_must_be_said():
    assert Experiment.model_validate({"base": OLMOE}).base == Spec.model_validate(
        {**EXAMPLE["base"], "model": "olmoe-1b-7b"}
    )


def test_samples_that_ship_are_valid():
    samples = list((Path(__file__).resolve().parents[2] / "samples").glob("*.json"))
    assert samples
    for sample in samples:
        assert parse_experiment(sample.read_bytes()).runs()


@pytest.mark.parametrize(
    ("document", "sentences"),
    [
        (None, ["experiment: None is not an object"]),
        ([EXAMPLE], ["experiment: [{'schema': 1, 'title': 'Two fusions on one trace', 'base':… is not an object"]),
        ({}, ["base: is missing and has no default"]),
        ({"base": {}}, ["base.model: is missing and has no default"]),
        ({"base": None}, ["base: None is not an object"]),
        ({"schema": 2, "base": OLMOE}, ["schema: 2 is not allowed; it must be 1"]),
        ({"schema": "1", "base": OLMOE}, ["schema: '1' is not allowed; it must be 1"]),
        ({"schema": True, "base": OLMOE}, ["schema: True is not allowed; it must be 1"]),
        ({"schema": 1.0, "base": OLMOE}, ["schema: 1.0 is not allowed; it must be 1"]),
        ({"title": "", "base": OLMOE}, ["title: a length of 0 is not allowed; it must be at least 1"]),
        ({"title": "x" * 201, "base": OLMOE}, ["title: a length of 201 is not allowed; it must be at most 200"]),
        ({"title": "a\0b", "base": OLMOE}, [r"title: 'a\x00b' is not one line of text"]),
        ({"title": "a\nb", "base": OLMOE}, [r"title: 'a\nb' is not one line of text"]),
        ({"title": "  ", "base": OLMOE}, ["title: '  ' is not one line of text"]),
        ({"title": "\ud800", "base": OLMOE}, [r"title: '\ud800' is not text"]),
    ],
)
def test_a_document_that_is_no_experiment_gets_one_sentence(document, sentences):
    assert errors(document) == sentences


def test_every_problem_of_a_document_is_told_at_once():
    document = {
        "schema": 3,
        "title": "",
        "base": {"layers": 0, "routing": {"strategy": "best"}, "workload": {"concurrency": -2, "users": 5}},
        "vary": {"field": "seed", "values": []},
    }
    with pytest.raises(SpecError) as caught:
        Experiment.model_validate(document)
    assert [error.field for error in caught.value.errors] == [
        "schema", "title", "base.model", "base.layers", "base.routing.strategy", "base.workload.concurrency",
        "base.workload.users", "vary.field", "vary.values",
    ]  # fmt: skip
    assert caught.value.field == "schema"


def test_a_file_is_read_as_its_document():
    assert parse_experiment(json.dumps(EXAMPLE).encode()) == Experiment.model_validate(EXAMPLE)
    with pytest.raises(SpecError, match=r"^base\.model: 'x' is not one of qwen3-30b-a3b, "):
        parse_experiment(b'{"base": {"model": "x"}}')
    with pytest.raises(SpecError, match=r"^experiment: the document has more than 1,000,000 bytes, the most"):
        parse_experiment(b" " * (MAX_DOCUMENT_BYTES + 1))
    trace = b'{"base": {"model": "olmoe-1b-7b", "workload": {"trace": "mine"}}}'
    assert parse_experiment(trace, Library(traces=frozenset(["mine"]))).base.workload.trace == "mine"


@pytest.mark.parametrize("brackets", [b"[]", b"{}"])
def test_a_value_nested_just_within_what_json_takes_is_refused_like_any_other(brackets):
    depth, inner = 900, b'"a":' if brackets == b"{}" else b""
    value = (brackets[:1] + inner) * depth + b"1" + brackets[1:] * depth
    with pytest.raises(SpecError, match=r"^vary\.values: routing"):
        parse_experiment(b'{"base":{"model":"olmoe-1b-7b"},"vary":{"field":"routing","values":[' + value + b"]}}")


# --- what is planned


def test_variants_times_conditions_are_planned_condition_by_condition():
    planned = Experiment.model_validate(EXAMPLE).runs()
    assert [(run.variant, run.condition) for run in planned] == [
        ("none", "1×128"), ("gate_up", "1×128"), ("none", "16×128"), ("gate_up", "16×128"),
        ("none", "1×2048"), ("gate_up", "1×2048"), ("none", "16×2048"), ("gate_up", "16×2048"),
    ]  # fmt: skip
    last = planned[-1].spec
    assert (last.kernels.fusion, last.workload.concurrency, last.workload.prompt_tokens) == ("gate_up", 16, 2048)


def test_without_variants_and_conditions_the_base_is_the_one_run():
    (run,) = experiment().runs()
    assert (run.variant, run.condition, run.spec) == ("base", "8×conversation", experiment().base)


def test_a_condition_leaves_what_it_does_not_set():
    workload = {"concurrency": 3, "prompt_tokens": 7, "requests": 5, "seed": 9}
    runs = experiment(conditions=[{"concurrency": 4}, {"prompt_tokens": 8, "concurrency": None}], workload=workload)
    assert [run.condition for run in runs.runs()] == ["4×7", "3×8"]
    assert {(run.spec.workload.requests, run.spec.workload.seed) for run in runs.runs()} == {(5, 9)}


def test_conditions_that_differ_beside_the_corner_are_told_apart_by_name():
    runs = experiment(conditions=[{"max_batch_tokens": 64, "output_tokens": 5}, {"max_batch_tokens": 128}]).runs()
    assert [run.condition for run in runs] == [
        "8×conversation, output_tokens 5, max_batch_tokens 64",
        "8×conversation, output_tokens default, max_batch_tokens 128",
    ]


def test_values_of_a_group_are_objects():
    runs = experiment(vary=("load", [{"profile": "uniform"}, {"skew": 0.5, "profile": "zipf"}, {}])).runs()
    assert [run.variant for run in runs] == ["profile=uniform", "profile=zipf skew=0.5", "default"]
    assert [(run.spec.load.profile, run.spec.load.skew) for run in runs] == [
        ("uniform", 1.0), ("zipf", 0.5), ("zipf", 1.0)
    ]  # fmt: skip


def test_a_varied_strategy_starts_from_its_defaults_but_keeps_top_k():
    runs = experiment(vary=("routing.strategy", ["token_choice"]), routing={"top_k": 4, "capacity_factor": 1.5}).runs()
    assert (runs[0].spec.routing.top_k, runs[0].spec.routing.capacity_factor) == (4, None)


def test_another_varied_field_keeps_all_the_rest():
    runs = experiment(vary=("routing.top_k", [None, 2]), routing={"capacity_factor": 1.5}, layers=2).runs()
    assert [run.variant for run in runs] == ["default", "2"]
    assert [(r.spec.routing.top_k, r.spec.routing.capacity_factor, r.spec.layers) for r in runs] == [
        (None, 1.5, 2), (2, 1.5, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "name"),
    [("none", "none"), (None, "default"), (True, "true"), (2, "2"), (0.5, "0.5"), ({}, "default"),
     ({"b": None, "a": {"c": False}}, "a=c=false b=default")],
)  # fmt: skip
def test_a_variant_is_called_by_its_value(value, name):
    assert label(value) == name


def test_only_one_known_variable_may_vary():
    (sentence,) = errors({"base": OLMOE, "vary": {"field": "workload.concurrency", "values": [1]}})
    assert sentence.startswith("vary.field: 'workload.concurrency' is not one of model, layers, routing.strategy, ")
    assert ", kernels.attention, routing, load, parallel.layout" in sentence
    for field in ("kernels", "parallel", "", "base.layers", "measure.repeats", "seed"):
        assert errors({"base": OLMOE, "vary": {"field": field, "values": [1]}})[0].startswith("vary.field: ")
    assert "vary.field: 3 is not text" in errors({"base": OLMOE, "vary": {"field": 3, "values": [1]}})


def test_every_bad_value_of_the_variable_is_told_once():
    vary = {"field": "routing", "values": [{"strategy": "best"}, "token_choice", {"topk": 2, "top_k": 0}, {}]}
    assert errors({"base": OLMOE, "vary": vary, "conditions": [{"concurrency": 1}, {"concurrency": 2}]}) == [
        "vary.values: routing.strategy: 'best' is not one of token_choice, expert_choice, dynamic, balanced, hash, "
        "soft, group_limited",
        "vary.values: routing: 'token_choice' is not an object",
        "vary.values: routing.top_k: 0 is not allowed; it must be at least 1",
        "vary.values: routing.topk: there is no such field; routing has strategy, top_k, capacity_factor, scoring, "
        "renormalize, route_scale, bias, top_p, max_experts, solver, slots_per_expert, num_groups, topk_groups, "
        "group_score",
    ]


def test_a_value_that_only_its_variant_has_is_blamed_on_vary():
    assert errors({"base": OLMOE, "vary": {"field": "routing.top_k", "values": [8, 65]}}) == [
        "vary.values: routing.top_k: 65 is above the 64 experts of olmoe-1b-7b"
    ]
    vary = {"field": "model", "values": ["olmoe-1b-7b", "mixtral-8x7b"]}
    assert errors({"base": {**OLMOE, "routing": {"top_k": 9}, "layers": 17}, "vary": vary}) == [
        "base.layers: 17 is above the 16 MoE layers of olmoe-1b-7b",
        "base.routing.top_k: 9 is above the 8 experts of mixtral-8x7b",
    ]


def test_a_value_that_only_its_condition_has_is_blamed_on_the_condition():
    conditions = [{"concurrency": 8}, {"concurrency": 4096}, {"rate": 2.0}]
    vary = {"field": "kernels.fusion", "values": ["none", "gate_up"]}
    assert errors({"base": OLMOE, "vary": vary, "conditions": conditions}) == [
        "conditions.1.concurrency: 4096 is above max_batch_tokens (2048); a step decodes one token each",
        "conditions.2.rate: 2.0 has no use with closed; leave it empty, or set arrivals to poisson",
    ]


def test_variants_and_conditions_must_differ_in_name():
    vary = {"field": "routing", "values": [{"top_k": 2}, {"top_k": 4}, {"top_k": 2}]}
    conditions = [{"concurrency": 1}, {"concurrency": 2}, {"concurrency": 1, "prompt_tokens": None}]
    assert errors({"base": OLMOE, "vary": vary, "conditions": conditions}) == [
        "vary.values: 'top_k=2' stands there more than once; variants must differ",
        "conditions: 1×conversation stands there more than once; conditions must differ",
    ]


def test_no_more_runs_are_planned_than_a_page_can_show():
    vary = {"field": "layers", "values": list(range(1, 17))}
    seventeen = [{"concurrency": n} for n in range(1, 18)]
    assert len(Experiment.model_validate({"base": OLMOE, "vary": vary, "conditions": seventeen[:16]}).runs()) == 256
    assert errors({"base": OLMOE, "vary": vary, "conditions": seventeen}) == [
        "experiment: 272 runs are planned; at most 256 are allowed"
    ]


# --- what differs


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        ({}, {}, []),
        ({"layers": 1}, {"layers": 2}, ["layers"]),
        ({"kernels": {"fusion": "none"}}, {"kernels": {"fusion": "gate_up"}}, ["kernels.fusion"]),
        # TP2·DP4 against TP1·DP8 is one layout against another
        ({"parallel": {"layout": {"tp": 2, "dp": 4}}}, {"parallel": {"layout": {"tp": 1, "dp": 8}}},
         ["parallel.layout"]),
        ({"parallel": {"layout": {"tp": 2, "dp": 4}}}, {"parallel": {"layout": {"tp": 2, "dp": 8}}},
         ["parallel.layout.dp"]),
        # a strategy with parameters of its own is one change; two parameters of one strategy are two
        ({"routing": {"strategy": "token_choice", "capacity_factor": 1.0}}, {"routing": {"strategy": "soft"}},
         ["routing"]),
        ({"routing": {"strategy": "token_choice"}}, {"routing": {"strategy": "soft"}}, ["routing.strategy"]),
        ({"routing": {"top_k": 2, "capacity_factor": 1.0}}, {"routing": {"top_k": 4}},
         ["routing.top_k", "routing.capacity_factor"]),
        ({"load": {"profile": "zipf", "skew": 0.5}}, {"load": {"profile": "uniform"}}, ["load"]),
        ({"load": {"skew": 0.5}}, {"load": {"skew": 0.7}}, ["load.skew"]),
        # different things stay different things, in schema order
        ({"model": "mixtral-8x7b", "kernels": {"dtype": "float32"}, "routing": {"top_k": 1}}, {},
         ["model", "routing.top_k", "kernels.dtype"]),
        ({"workload": {"concurrency": 1, "prompt_tokens": 128}}, {},
         ["workload.concurrency", "workload.prompt_tokens"]),
    ],
)  # fmt: skip
def test_differences_count_in_variables(a, b, names):
    assert diff(spec(**a), spec(**b)) == names
    assert diff(spec(**b), spec(**a)) == names


SPECS = st.builds(
    lambda layers, tp, dp, strategy, top_k, cf, profile, skew, dtype, concurrency: spec(
        layers=layers,
        parallel={"layout": {"tp": tp, "dp": dp}},
        routing={"strategy": strategy, "top_k": top_k, "capacity_factor": cf},
        load={"profile": profile, "skew": skew},
        kernels={"dtype": dtype},
        workload={"concurrency": concurrency},
    ),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from(["token_choice", "soft"]),
    st.none() | st.integers(1, 2),
    st.none() | st.just(1.5),
    st.sampled_from(["uniform", "zipf"]),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from(["float32", "bfloat16"]),
    st.integers(1, 2),
)


@given(SPECS, SPECS)
def test_difference_is_symmetric_and_empty_for_equals_alone(a, b):
    assert diff(a, a) == []
    assert diff(a, b) == diff(b, a)
    assert (diff(a, b) == []) == (a == b)
    known = {*variables(), *(f"workload.{name}" for name in a.workload.model_dump())}
    assert set(diff(a, b)) <= known


@given(SPECS, SPECS)
def test_every_field_that_differs_is_counted_in_one_variable(a, b):
    flat_a, flat_b = flat(a.model_dump()), flat(b.model_dump())
    for field in (name for name in flat_a if flat_a[name] != flat_b[name]):
        assert len([name for name in diff(a, b) if f"{field}.".startswith(f"{name}.")]) == 1


# --- round trip


TITLES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=200).filter(str.strip)


@st.composite
def documents(draw):
    """Valid documents for a model of 64 experts, 16 layers and 4,096 tokens of context."""
    field = draw(st.none() | st.sampled_from(["kernels.fusion", "routing", "load", "layers", "routing.strategy"]))
    values = {
        None: st.none(),
        "kernels.fusion": st.permutations(["none", "gate_up"]),
        "routing": st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True).map(
            lambda ks: [{"top_k": k} for k in ks]
        ),
        "load": st.just([{"profile": "uniform"}, {"profile": "zipf", "skew": 0.25}]),
        "layers": st.lists(st.integers(1, 16), min_size=1, max_size=4, unique=True),
        "routing.strategy": st.just(["token_choice"]),
    }[field]
    corner = st.fixed_dictionaries(
        {"concurrency": st.integers(1, 64)}, optional={"prompt_tokens": st.none() | st.integers(1, 2000)}
    )
    return {
        "title": draw(TITLES),
        "base": {
            **OLMOE,
            "layers": draw(st.integers(1, 16)),
            "routing": {
                "top_k": draw(st.none() | st.integers(1, 64)),
                "capacity_factor": draw(st.none() | st.floats(0.01, 1000)),
            },
            "load": {"skew": draw(st.floats(0, 5))},
            "kernels": {"threads": draw(st.none() | st.integers(1, 1024)), "attention": draw(st.booleans())},
            "workload": {"seed": draw(st.integers(0, 2**32 - 1)), "output_tokens": draw(st.integers(1, 2000))},
        },
        "vary": None if field is None else {"field": field, "values": draw(values)},
        "conditions": draw(
            st.lists(corner, max_size=4, unique_by=lambda c: (c["concurrency"], c.get("prompt_tokens")))
        ),
        "measure": {"max_seconds": draw(st.floats(1, 86_400)), "repeats": draw(st.integers(1, 100))},
    }  # fmt: skip


@given(documents())
def test_an_experiment_survives_its_document(document):
    read = Experiment.model_validate(document)
    again = parse_experiment(json.dumps(read.document()).encode())
    assert again == read
    assert again.document() == read.document()
    assert again.runs() == read.runs()


@given(documents())
def test_planned_runs_are_told_apart_and_variants_differ_in_one_variable(document):
    planned = Experiment.model_validate(document)
    runs = planned.runs()
    assert len({(run.variant, run.condition) for run in runs}) == len(runs)
    assert len(runs) == len(planned.variants()) * max(1, len(document["conditions"]))
    base = planned.variants()[0][1]
    for _, variant in planned.variants():
        assert len(diff(base, variant)) <= 1


def test_configurations_are_values():
    assert Layout(tp=2) == Layout(tp=2)
    assert hash(spec()) == hash(spec())
    with pytest.raises(ValueError, match="frozen"):
        spec().layers = 2
