"""What the types of an experiment can't say: what isn't built yet, and what only the model or the library decides."""

import pytest

from bench_worker import models
from bench_worker.spec_fields import Spec
from bench_worker.spec_rules import NOT_BUILT, Library, check_run, flat
from bench_worker.strategies import STRATEGIES


def problems(library=None, **fields):
    spec = Spec.model_validate({"model": "olmoe-1b-7b", **fields})
    return [str(problem) for problem in check_run(spec, library or Library())]


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def allowed_values(path):
    owner = Spec
    *parents, leaf = path.split(".")
    for name in parents:
        owner = owner.model_fields[name].annotation
    return set(owner.model_fields[leaf].annotation.__args__)


def test_a_plain_configuration_has_no_problem():
    assert problems() == []


@pytest.mark.parametrize(
    ("path", "value", "runs"),
    [
        ("kernels.quantization", "fp8", "none, int8, int4"),
    ],
)
def test_what_is_not_built_is_refused_by_name(path, value, runs):
    assert problems(**nested(path, value)) == [f"{path}: '{value}' is not built yet; this version runs {runs}"]


@pytest.mark.parametrize("path", NOT_BUILT)
def test_only_known_values_are_listed_as_not_built_and_some_are_built(path):
    assert NOT_BUILT[path] < allowed_values(path)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("workload.rate", 2.5, "2.5 has no use with closed; leave it empty, or set arrivals to poisson"),
        ("workload.speedup", 2.0, "2.0 has no use with closed; leave it empty, or set arrivals to trace"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(path, value, sentence):
    assert problems(**nested(path, value)) == [f"{path}: {sentence}"]


def test_all_problems_of_a_configuration_are_found():
    assert problems(
        layers=17, routing={"strategy": "soft", "top_k": 65}, workload={"trace": "mine", "concurrency": 4096}
    ) == [
        "workload.trace: 'mine' is not one of conversation, code",
        "workload.concurrency: 4096 is above max_batch_tokens (2048); a step decodes one token each",
        "layers: 17 is above the 16 MoE layers of olmoe-1b-7b",
        "routing.top_k: 65 is above the 64 experts of olmoe-1b-7b",
    ]


@pytest.mark.parametrize(
    ("model", "moe_layers", "experts"),
    [("olmoe-1b-7b", 16, 64), ("qwen3-30b-a3b", 48, 128), ("deepseek-v3", 58, 256), ("glm-4.5-air", 45, 128)],
)
def test_layers_and_top_k_are_bounded_by_the_model(model, moe_layers, experts):
    assert problems(model=model, layers=moe_layers, routing={"top_k": experts}) == []
    assert problems(model=model, layers=moe_layers + 1, routing={"top_k": experts + 1}) == [
        f"layers: {moe_layers + 1} is above the {moe_layers} MoE layers of {model}",
        f"routing.top_k: {experts + 1} is above the {experts} experts of {model}",
    ]


@pytest.mark.parametrize(
    ("routing", "sentence"),
    [
        ({"strategy": "hash", "capacity_factor": 1.25},
         "routing.capacity_factor: 1.25 has no use with hash, which takes top_k; leave it empty"),
        ({"top_p": 0.5}, "routing.top_p: 0.5 has no use with token_choice, which takes top_k, capacity_factor, "
                         "scoring, renormalize, route_scale, bias; leave it empty"),
        ({"strategy": "group_limited", "num_groups": 7},
         "routing.num_groups: 7 does not divide the 64 experts of olmoe-1b-7b"),
        ({"strategy": "group_limited", "topk_groups": 9}, "routing.topk_groups: 9 is above the 8 groups"),
        ({"strategy": "group_limited", "num_groups": 16, "topk_groups": 1},
         "routing.topk_groups: 1 of 16 groups hold 4 experts; top_k is 8"),
        ({"bias": [0.5]}, "routing.bias: has 1 number; it must have one for each of the 64 experts of olmoe-1b-7b"),
    ],
)  # fmt: skip
def test_a_strategys_parameters_must_mean_something_to_it_and_to_the_model(routing, sentence):
    assert problems(routing=routing) == [sentence]


def test_groups_are_checked_against_those_that_the_model_brings():
    routing = {"strategy": "group_limited", "top_k": 33, "topk_groups": 1}
    assert problems(model="deepseek-v3", routing=routing) == [
        "routing.topk_groups: 1 of 8 groups hold 32 experts; top_k is 33"
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", models.presets())
def test_every_strategy_runs_every_model_by_default(model, strategy):
    assert problems(model=model, routing={"strategy": strategy}, kernels={"attention": False}) == []


@pytest.mark.parametrize(
    ("load", "sentence"),
    [
        ({"profile": "recorded"}, "load.recording: is missing; the profile recorded replays one"),
        ({"recording": "mine"},
         "load.recording: 'mine' has no use with zipf; leave it empty, or set profile to recorded"),
        ({"profile": "recorded", "recording": "ours"}, "load.recording: 'ours' is not one of mine"),
        ({"profile": "recorded", "recording": "ours.npz"},
         "load.recording: 'ours.npz' is a file path; file paths are for the command line only"),
    ],
)  # fmt: skip
def test_a_recorded_load_names_a_recording_that_there_is(load, sentence):
    assert problems(Library(recordings=frozenset(["mine"])), load=load) == [sentence]


def test_a_recording_where_there_is_none_says_so():
    assert problems(load={"profile": "recorded", "recording": "mine"}) == [
        "load.recording: 'mine' is no entry; none has been imported here"
    ]
    assert problems(Library(allow_paths=True), load={"profile": "recorded", "recording": "mine"}) == []


def test_an_enormous_number_is_cut_in_its_sentence():
    assert problems(layers=10**4000) == [f"layers: 1{'0' * 58}… is above the 16 MoE layers of olmoe-1b-7b"]


def test_an_unknown_model_is_told_what_there_is():
    names = ", ".join(models.presets())
    assert problems(model="olmo-1b-7b") == [
        f"model: 'olmo-1b-7b' is not one of {names} (did you mean olmoe-1b-7b?)"
    ]  # fmt: skip


def test_attention_that_can_not_be_measured_says_how_to_go_on():
    (sentence,) = problems(model="qwen3.6-35b-a3b")
    assert sentence.startswith("kernels.attention: qwen3.6-35b-a3b has ")
    assert sentence.endswith("; set it to false to measure the MoE layer alone")
    assert problems(model="qwen3.6-35b-a3b", kernels={"attention": False}) == []


def test_a_sequence_beyond_the_models_context_can_be_measured():
    """It is warned of where the result and the memory are told."""
    assert problems(workload={"prompt_tokens": 4096, "output_tokens": 1}) == []


def test_requests_that_come_at_a_rate_need_one():
    assert problems(workload={"arrivals": "poisson"}) == [
        "workload.rate: is missing; poisson arrivals have a rate, in requests a second"
    ]
    assert problems(workload={"arrivals": "poisson", "rate": 0.5}) == []
    assert problems(workload={"arrivals": "trace"}) == problems(workload={"arrivals": "trace", "speedup": 8.0}) == []


def test_an_open_loop_needs_whole_steps():
    assert problems(workload={"arrivals": "trace"}, kernels={"attention": False}) == [
        "workload.arrivals: 'trace' needs the time of whole steps; set kernels.attention to true, or use closed"
    ]


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({"trace": "code"},
         "True has no use with code, whose prompts share nothing; use a trace with hash_ids, or false"),
        ({"trace": "mine"},
         "True has no use with mine: a kept trace has no hash_ids; name its file on the command line"),
        ({"trace": "mine.jsonl", "prompt_tokens": 5},
         "True has no use with prompts of one length; leave prompt_tokens empty, or use false"),
    ],
)  # fmt: skip
def test_prefixes_are_reused_only_where_prompts_share_any(workload, sentence):
    library = Library(traces=frozenset(["mine"]), allow_paths=True)
    assert problems(library, workload={"prefix_reuse": True, **workload}) == [f"workload.prefix_reuse: {sentence}"]
    assert problems(library, workload={"prefix_reuse": True, "trace": "mine.jsonl"}) == []


def test_a_kv_cache_holds_at_least_one_request():
    fixed = {"prompt_tokens": 1000, "output_tokens": 25}
    assert problems(workload={"kv_tokens": 1024, **fixed}) == []
    assert problems(workload={"kv_tokens": 1023, **fixed}) == [
        "workload.kv_tokens: 1,023 tokens can't hold a request of 1,000 prompt and 25 output tokens; "
        "it leaves 1,024 in the KV cache"
    ]


@pytest.mark.parametrize(
    ("field", "path"),
    [("model", "./tiny.json"), ("model", "/etc/passwd"), ("model", "tiny.json"), ("model", "a\\b"),
     ("trace", "/etc/passwd"), ("trace", "mine.csv"), ("trace", "../mine"), ("trace", "a\\b")],
)  # fmt: skip
def test_file_paths_are_for_the_command_line_only(field, path):
    (sentence,) = problems(**({"model": path} if field == "model" else {"workload": {"trace": path}}))
    assert sentence == (
        f"{'model' if field == 'model' else 'workload.trace'}: {path!r} is a file path; "
        "file paths are for the command line only"
    )


def test_a_path_on_the_command_line_must_lead_to_a_model(tiny_config, tmp_path):
    command_line = Library(allow_paths=True)
    assert problems(command_line, model=str(tiny_config), layers=4) == []
    assert problems(command_line, model=str(tiny_config), layers=5) == [
        "layers: 5 is above the 4 MoE layers of tiny"
    ]  # fmt: skip
    missing = tmp_path / "config.json"
    assert problems(command_line, model=str(missing)) == [f"model: '{missing}': there is no such file"]


def test_imported_traces_may_be_named_and_are_listed():
    library = Library(traces=frozenset(["friday", "monday"]))
    assert problems(library, workload={"trace": "friday"}) == []
    assert problems(library, workload={"trace": "fridya"}) == [
        "workload.trace: 'fridya' is not one of conversation, code, friday, monday (did you mean friday?)"
    ]


def test_nested_objects_are_flattened_by_dotted_names():
    assert flat({"a": {"b": {"c": 1}, "d": [2]}, "e": None}) == {"a.b.c": 1, "a.d": [2], "e": None}
