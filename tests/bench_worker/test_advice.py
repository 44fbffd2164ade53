"""Which experiments a verdict leads to."""

import pytest

from bench_worker.advice import MOST_ADVICE
from bench_worker.result import Limit
from bench_worker.spec import Experiment, Library, diff
from bench_worker.verdict import overall, verdict
from tests.bench_worker.make import timed_run
from tests.bench_worker.test_verdict import exchange, limit


def spec(**base):
    return Experiment.model_validate({"base": {"model": "olmoe-1b-7b", **base}}, context=Library(measures=False)).base


def fields(run):
    return [one.field for one in verdict(run).advice]


def ranks(count, **parallel):
    """On ``count`` ranks of one device."""
    layout = {"layout": {"dp": count}, "mode": "virtual", "topology": "h200-nccl"}
    return spec(kernels={"attention": False}, parallel={**layout, **parallel})


WAITING = [{"experts": 70.0, "idle": 0.0}, *[{"experts": 10.0, "idle": 60.0}] * 7]


@pytest.mark.parametrize(
    ("redundant", "words"), [(0, "placement eplb"), (8, "placement eplb with 8 redundant experts")]
)
def test_waiting_ranks_get_a_placement_by_load(redundant, words):
    eight = ranks(8, redundant_experts=redundant)
    advice = verdict(timed_run(*WAITING, limits=limit(1.0), spec=eight, exchange=exchange(8))).advice
    assert advice[0].sentence == f"{words}: waiting is 75%"
    assert advice[0].experiment["vary"] == {"field": "parallel.placement", "values": ["contiguous", "eplb"]}


def test_with_a_placement_by_load_hot_experts_get_copies_as_many_as_the_ranks_divide():
    twelve = ranks(12, placement="eplb", redundant_experts=8)
    run = timed_run(*WAITING, limits=limit(1.0), spec=twelve, exchange=exchange(12))
    advice = verdict(run).advice
    assert advice[0].sentence == "placement eplb with 20 redundant experts: waiting is 75%"
    assert advice[0].experiment["vary"] == {"field": "parallel.redundant_experts", "values": [8, 20]}


def test_an_expert_kernel_that_is_far_from_its_floor_is_the_first_thing_to_change():
    slow = {"experts": Limit(floor_us=1.0, share=0.26, bound="overhead", by_memory=1.0)}
    advice = verdict(timed_run({"experts": 10.0}, limits=slow, spec=spec())).advice
    assert advice[0].sentence == "experts kernel auto: deepspeed reaches 26% of what the device can do"
    assert "kernels.experts" not in fields(timed_run({"experts": 10.0}, limits=limit(1.0), spec=spec()))
    chosen = spec(kernels={"experts": "auto"})
    assert "kernels.experts" not in fields(timed_run({"experts": 10.0}, limits=slow, spec=chosen))


def test_more_requests_in_flight_share_the_reading_of_the_weights():
    eight = spec(workload={"concurrency": 8, "requests": 32})
    advice = verdict(timed_run({"experts": 10.0}, limits=limit(1.0), spec=eight)).advice
    assert advice[0].sentence == "concurrency 32: weight streaming is 100%"
    assert advice[0].experiment["conditions"] == [{"concurrency": 8}, {"concurrency": 32}]
    assert "vary" not in advice[0].experiment
    few = spec(workload={"concurrency": 8, "requests": 31})
    assert "workload.concurrency" not in fields(timed_run({"experts": 10.0}, limits=limit(1.0), spec=few))


def test_compute_is_bought_with_fewer_experts_a_token_which_is_said():
    advice = verdict(timed_run({"experts": 10.0}, limits=limit(0.0), spec=spec())).advice
    assert advice[0].sentence == "top-k 4 instead of 8; it changes the expert set: expert compute is 100%"
    assert advice[0].experiment["vary"] == {"field": "routing.top_k", "values": [None, 4]}
    assert "routing.top_k" not in fields(
        timed_run({"experts": 1.0}, limits=limit(0.0), spec=spec(routing={"top_k": 1}))
    )


def test_on_a_gpu_nothing_is_advised_that_only_cpus_compute():
    run = timed_run({"experts": 10.0}, limits=limit(1.0), spec=spec(kernels={"experts": "auto"}))
    assert "kernels.quantization" in [one.field for one in overall([run]).advice]
    assert "kernels.quantization" not in [one.field for one in overall([run], "cuda").advice]


def test_what_a_variant_beside_it_is_already_is_not_advised():
    base, beside = spec(), spec(routing={"top_k": 4})
    run = timed_run({"experts": 10.0}, limits=limit(0.0), spec=base)
    assert "routing.top_k" in [one.field for one in overall([run]).advice]
    tried = timed_run({"experts": 9.0}, limits=limit(0.0), spec=beside).model_copy(update={"variant": "4"})
    assert "routing.top_k" not in [one.field for one in overall([run, tried]).advice]
    elsewhere = spec(routing={"top_k": 4}, workload={"concurrency": 64})  # under another load
    other = tried.model_copy(update={"spec": elsewhere, "condition": "64×128"})
    assert "routing.top_k" in [one.field for one in overall([run, other]).advice]


def test_an_exact_solver_gives_way_to_the_auction():
    exact = spec(routing={"strategy": "balanced", "solver": "exact"})
    assert fields(timed_run({"route.select": 10.0}, limits=limit(1.0), spec=exact))[0] == "routing.solver"


def test_a_wire_that_is_assumed_is_called_so():
    advice = verdict(timed_run({"dispatch": 10.0}, spec=ranks(2), exchange=exchange(2, "assumed"))).advice
    assert [one.sentence for one in advice] == [
        "placement locality: communication (assumed network) is 100%",
        "group-limited routing; it changes the expert set: communication (assumed network) is 100%",
    ]


def test_nothing_is_advised_against_attention():
    assert fields(timed_run({"attention": 10.0}, spec=spec(workload={"requests": 64}))) == []


def test_narrower_weights_are_less_to_read():
    auto = spec(kernels={"experts": "auto"})
    advice = verdict(timed_run({"experts": 10.0}, limits=limit(1.0), spec=auto)).advice
    (narrower,) = (one for one in advice if one.field == "kernels.quantization")
    assert narrower.sentence == "experts in int8: weight streaming is 100%"
    assert narrower.experiment["vary"] == {"field": "kernels.quantization", "values": ["none", "int8"]}


@pytest.mark.parametrize(
    "kernels",
    [
        {"experts": "deepspeed"},  # computes in the weights' own format
        {"experts": "auto", "dtype": "float32"},
        {"experts": "auto", "quantization": "int8"},  # they are
    ],
)
def test_what_this_version_can_not_run_or_has_done_is_not_advised(kernels):
    run = timed_run({"experts": 10.0}, limits=limit(1.0), spec=spec(kernels=kernels))
    assert "kernels.quantization" not in fields(run)


@pytest.mark.parametrize("by_memory", [0.0, 0.5, 1.0])
def test_every_advice_is_an_experiment_that_changes_one_variable_of_the_run(by_memory):
    run = timed_run(
        {"experts": 30.0, "route.select": 10.0, "attention": 10.0},
        limits={"experts": Limit(floor_us=1.0, share=0.2, bound="overhead", by_memory=by_memory)},
        spec=spec(workload={"requests": 64}),
    )
    advice = verdict(run).advice
    assert 0 < len(advice) <= MOST_ADVICE
    assert len({one.field for one in advice}) == len(advice)
    for one in advice:
        experiment = Experiment.model_validate(one.experiment)
        here, there = (planned.spec for planned in experiment.runs())
        assert here == run.spec
        assert diff(here, there) == [one.field]


def test_a_small_share_is_not_worth_an_experiment():
    run = timed_run({"attention": 91.0, "route.select": 9.0}, limits=limit(1.0), spec=spec(workload={"requests": 64}))
    assert "workload.concurrency" not in fields(run)
