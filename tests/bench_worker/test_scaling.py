"""How often a model holds what was measured once."""

import numpy as np

from bench_worker import models
from bench_worker.scaling import LAYER, model_leaves, model_step_us, scale, step_us, with_stages
from tests.bench_worker.make import timed_run


def test_sliding_and_full_attention_count_their_own_layers():
    model = models.presets()["gpt-oss-20b"]
    counts = scale(model, 1, ["attention.full", "attention.sliding", "experts"]).counts
    assert counts == {"attention.full": 12, "attention.sliding": 12, "experts": 24}


def test_collectives_of_a_group_count_with_the_layers_that_make_them():
    model = models.presets()["deepseek-v3"]
    leaves = [
        "attention.heads", "attention.all_reduce", "attention.all_gather", "other.embedding.all_reduce",
        "other.dense_ffn.all_reduce",
    ]  # fmt: skip
    assert list(scale(model, 1, leaves).counts.values()) == [61, 61, 58, 1, 3]
    sliding = scale(models.presets()["gpt-oss-20b"], 1, ["attention.sliding.all_reduce", "attention.all_gather"]).counts
    assert list(sliding.values()) == [12, 24]


def test_dense_layers_count_once_each_and_moe_layers_without_them():
    model = models.presets()["deepseek-v3"]
    counts = scale(model, 1, ["attention", "experts.routed", "other.dense_ffn", "other.embedding"]).counts
    assert counts == {"attention": 61, "experts.routed": 58, "other.dense_ffn": 3, "other.embedding": 1}


def test_a_step_is_made_alike_alone_and_among_others():
    model = models.presets()["olmoe-1b-7b"]
    times = {"route.gate": 4.0, "experts": 30.0, "attention": 10.0, "other.head": 7.0, LAYER: 0.0}
    leaves = {
        leaf: np.array([us, us]) / (1 if leaf == "other.head" else 2) for leaf, us in times.items() if leaf != LAYER
    }
    assert model_step_us(times, model, executed_layers=2) == 16 * (2 + 15 + 5) + 7
    assert step_us(leaves, scale(model, 2, list(leaves))).tolist() == [359.0, 359.0]


def test_a_stage_comes_before_its_parts_and_is_their_sum():
    found = with_stages({"route.gate": np.array([1.0]), "route.select": np.array([2.0]), "experts": np.array([5.0])})
    assert {stage: times.tolist() for stage, times in found.items()} == {
        "route": [3.0], "route.gate": [1.0], "route.select": [2.0], "experts": [5.0]
    }  # fmt: skip
    assert list(found) == ["route", "route.gate", "route.select", "experts"]


def test_the_whole_model_holds_a_leaf_as_often_as_it_is_counted():
    run = timed_run({"experts": [1.0, 2.0], "other.head": 5.0}, steps=2, counts={"experts": 16})
    leaves = model_leaves(run.steps, run.scale)
    assert {leaf: times.tolist() for leaf, times in leaves.items()} == {
        "experts": [16.0, 32.0], "other.head": [5.0, 5.0]
    }  # fmt: skip


def test_stages_of_several_ranks_are_their_means_and_waiting_counts_once_a_layer():
    """Ranks that computed 4 and 1 µs and waited 0 and 3."""
    run = timed_run({"experts": 4.0, "idle": 0.0}, {"experts": 1.0, "idle": 3.0}, steps=1, counts={"experts": 10})
    leaves = model_leaves(run.steps, run.scale)
    assert {leaf: times.tolist() for leaf, times in leaves.items()} == {"experts": [25.0], "idle": [15.0]}


def test_a_part_that_a_rank_does_not_have_took_it_no_time():
    run = timed_run({"experts": 4.0, "dispatch": 2.0}, {"experts": 4.0}, steps=1)
    assert model_leaves(run.steps, run.scale)["dispatch"].tolist() == [1.0]
