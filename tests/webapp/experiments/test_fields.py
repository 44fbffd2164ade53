"""From the form's texts to the document and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench_worker.spec import Experiment, Library, parse_experiment, variables
from bench_worker.spec_fields import Routing
from bench_worker.strategies import STRATEGIES
from tests.webapp.experiments import make
from webapp.experiments import fields

CORNER = [{"concurrency": 1, "prompt_tokens": 16}]
ROUTINGS = [
    {"strategy": "token_choice", "top_k": 4, "capacity_factor": 1.25, "scoring": "sigmoid", "renormalize": True,
     "route_scale": 2.5, "bias": [0.5, *[0.0] * 63]},
    {"strategy": "expert_choice", "top_k": 2},
    {"strategy": "dynamic", "top_p": 0.6, "max_experts": 12},
    {"strategy": "balanced", "solver": "exact"},
    {"strategy": "hash", "top_k": 1},
    {"strategy": "soft", "slots_per_expert": 3},
    {"strategy": "group_limited", "num_groups": 4, "topk_groups": 2, "group_score": "max", "renormalize": False},
]  # fmt: skip
VARIED = [
    {"field": "routing.strategy", "values": list(STRATEGIES)},
    {"field": "routing.capacity_factor", "values": [None, 1.0, 1.5]},
    {"field": "routing", "values": ROUTINGS},
    {"field": "load", "values": [{"profile": "uniform"}, {"profile": "zipf", "skew": 2.0, "correlation": 0.5}]},
    {"field": "load.correlation", "values": [0, 0.5]},
    {"field": "kernels.quantization", "values": ["none", "int8", "int4"]},
    {"field": "parallel.placement", "values": ["contiguous", "eplb"]},
    {"field": "parallel.layout", "values": [{"tp": 2, "dp": 4}, {"tp": 1, "dp": 8}]},
]
#: What the ranks need beside them, for the variables that are theirs.
SPREAD = {
    "parallel": {"mode": "virtual", "layout": {"tp": 2, "dp": 2, "nodes": 2}, "placement": "locality",
                 "redundant_experts": 64, "topology": "h200-ethernet-100g", "count_only": True},
    "kernels": {"attention": False},
}  # fmt: skip


def again(asked: Any) -> Any:
    """What the form would send for an experiment, and the document that this makes."""
    texts = fields.texts_of(asked, Library())
    return None if texts is None else fields.build_document(texts)


@pytest.mark.parametrize("routing", ROUTINGS, ids=[routing["strategy"] for routing in ROUTINGS])
def test_a_strategy_with_its_parameters_survives_the_form(routing: dict[str, Any]) -> None:
    asked = make.experiment(base={"model": "olmoe-1b-7b", "routing": routing}, conditions=CORNER, vary=None)
    document = again(asked)
    assert Experiment.model_validate(document) == asked
    assert document["base"]["routing"] == routing


SAMPLES = sorted(Path("samples").glob("*.json"))
OPEN = {"poisson": {"rate": 0.5}, "trace": {"speedup": 10}, "closed": {}}


@pytest.mark.parametrize("arrivals", OPEN)
def test_arrivals_and_limits_survive_the_form(arrivals: str) -> None:
    workload = {"arrivals": arrivals, "kv_tokens": 9000, "limits": {"ttft_ms": 200.5, "e2e_ms": 9000}}
    asked = make.experiment(
        base={"model": "olmoe-1b-7b", "workload": workload},
        conditions=[{"concurrency": 4, "prompt_tokens": 16} | OPEN[arrivals]],
        vary=None,
    )
    assert Experiment.model_validate(again(asked)) == asked


def test_what_the_arrivals_have_no_use_for_stays_out() -> None:
    texts = {"model": "olmoe-1b-7b", "concurrency": "1, 2", "rate": "3", "speedup": "4, 5"}
    corners = {arrivals: fields.build_document(texts | {"arrivals": arrivals})["conditions"] for arrivals in OPEN}
    assert corners["closed"] == [{"concurrency": 1}, {"concurrency": 2}]
    assert corners["poisson"] == [{"concurrency": 1, "rate": 3}, {"concurrency": 2, "rate": 3}]
    assert [corner["speedup"] for corner in corners["trace"]] == [4, 4, 5, 5]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1..8", [1, 2, 4, 8]),
        ("3..20", [3, 6, 12, 20]),
        ("1, 16..64 100", [1, 16, 32, 64, 100]),
        ("8..8", ["8..8"]),
        ("64..1", ["64..1"]),
        ("0..4", ["0..4"]),
        ("0.5..4", ["0.5..4"]),
    ],
)
def test_a_range_doubles_up_to_its_end(text: str, values: list[Any]) -> None:
    conditions = fields.build_document({"model": "olmoe-1b-7b", "concurrency": text})["conditions"]
    assert [condition["concurrency"] for condition in conditions] == values


def test_a_grid_is_two_ranges() -> None:
    texts = {"model": "olmoe-1b-7b", "concurrency": "1..4", "prompt_tokens": "128..512"}
    corners = [run.condition for run in Experiment.model_validate(fields.build_document(texts)).runs()]
    assert corners == [f"{users}×{tokens}" for tokens in (128, 256, 512) for users in (1, 2, 4)]


@pytest.mark.parametrize("sample", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_every_sample_opens_in_the_form(sample: Path) -> None:
    asked = parse_experiment(sample.read_bytes())
    document = again(asked)
    assert document is not None
    made = Experiment.model_validate(document)
    assert (made.title, made.measure, made.runs()) == (asked.title, asked.measure, asked.runs())


def test_without_attention_there_is_nothing_to_limit() -> None:
    texts = {"model": "olmoe-1b-7b", "limit_ttft_ms": "5", "kv_tokens": "9"}
    assert fields.build_document(texts)["base"]["workload"]["limits"] == {"ttft_ms": 5}
    assert fields.build_document(texts | {"attention": "false"})["base"]["workload"] == {"kv_tokens": 9}


@pytest.mark.parametrize("vary", VARIED, ids=[vary["field"] for vary in VARIED])
def test_every_variable_that_is_offered_survives_the_form(vary: dict[str, Any]) -> None:
    spread = SPREAD if vary["field"].startswith("parallel") else {}
    asked = make.experiment(base={"model": "olmoe-1b-7b"} | spread, vary=vary, conditions=CORNER)
    assert vary["field"] in fields.offered()
    assert Experiment.model_validate(again(asked)) == asked


def test_everything_that_may_vary_is_offered() -> None:
    assert set(fields.offered()) == set(variables())


def test_ranks_and_their_network_survive_the_form() -> None:
    asked = make.experiment(base={"model": "olmoe-1b-7b"} | SPREAD, conditions=CORNER, vary=None)
    document = again(asked)
    assert Experiment.model_validate(document) == asked
    assert document["base"]["parallel"] == SPREAD["parallel"]


def test_what_the_mode_of_ranks_has_no_use_for_stays_out() -> None:
    texts = {"model": "olmoe-1b-7b", "tp": "2", "placement": "eplb", "topology": "h200-nccl", "count_only": "true"}
    made = {
        mode: fields.build_document(texts | {"mode": mode})["base"]["parallel"]
        for mode in ("single", "distributed", "virtual")
    }
    assert made["single"] == {"mode": "single"}
    assert made["distributed"] == {"mode": "distributed", "layout": {"tp": 2}, "placement": "eplb"}
    assert made["virtual"].items() >= {"topology": "h200-nccl", "count_only": True}.items()


def test_every_parameter_of_a_strategy_has_a_field_with_those_who_take_it() -> None:
    asks = {ask.name: fields.takers(ask) for ask in fields.ASKS if ask.section == "routing"}
    assert asks.keys() == Routing.model_fields.keys()
    assert asks["strategy"] == asks["top_k"] == tuple(STRATEGIES)
    assert asks["scoring"] == asks["bias"] == ("token_choice", "group_limited")
    assert (asks["capacity_factor"], asks["solver"]) == (("token_choice",), ("balanced",))
    assert all(fields.takers(ask) == () for ask in fields.ASKS if ask.section != "routing")


def test_an_unknown_strategy_keeps_everything_for_the_check_to_name_it() -> None:
    document = fields.build_document({"strategy": "best", "top_p": "0.5"})
    assert document["base"]["routing"] == {"strategy": "best", "top_p": 0.5}


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("", "Separated by commas; the first is the baseline."),
        ("layers", "Separated by commas; the first is the baseline."),
        ("routing.scoring", "Separated by commas; the first is the baseline. Of default, softmax, sigmoid."),
        ("routing.renormalize", "Separated by commas; the first is the baseline. Of default, true, false."),
        ("kernels.attention", "Separated by commas; the first is the baseline. Of true, false."),
        ("routing", 'A JSON list, such as [{"strategy": "dynamic", "top_p": 0.6}]; the first is the baseline.'),
    ],
)
def test_the_help_of_the_values_fits_the_variable(field: str, words: str) -> None:
    assert fields.values_help(field) == words


@pytest.mark.parametrize("group", fields.GROUPS)
def test_the_example_of_a_group_is_a_value_of_it(group: str) -> None:
    base = {"model": "olmoe-1b-7b"} | (SPREAD if group.startswith("parallel") else {})
    make.experiment(base=base, vary={"field": group, "values": fields.values_of(f"[{fields.GROUPS[group]}]")})


def test_the_sample_of_all_strategies_is_what_one_click_asks_for() -> None:
    sample = Path(__file__).parents[3] / "samples" / "seven-strategies.json"
    asked = parse_experiment(sample.read_bytes())
    texts = fields.texts_of(asked, Library())
    assert texts is not None
    assert texts.items() >= fields.all_strategies().items()
    assert len(asked.runs()) == 7 * 4
    assert (texts["model"], texts["requests"], texts["output_tokens"]) == ("olmoe-1b-7b", "4", "42")
    assert (texts["concurrency"], texts["prompt_tokens"]) == ("1, 4", "128, 2048")
