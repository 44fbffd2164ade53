"""What a placement is fitted to."""

import numpy as np
import pytest

from bench_worker import models
from bench_worker.parallel.fitted import fit_placement
from bench_worker.parallel.placement import place
from bench_worker.workload.recordings import from_counts, from_ids, recorded_layers
from tests.bench_worker.parallel.make import spec


def no_pass():
    raise AssertionError("a first pass was made")


@pytest.mark.parametrize("policy", ["contiguous", "round_robin"])
def test_what_does_not_look_at_the_load_is_fitted_to_nothing(tiny_config, policy):
    of = spec(tiny_config, parallel={"placement": policy})
    found = fit_placement(of, models.load(of.model, allow_paths=True), None, no_pass)
    assert (found.fitted_to, found.imbalance) == ("nothing", None)


def test_a_recording_places_each_executed_layer_by_its_own_counts(tiny_config):
    counts = np.ones((4, 8), np.int64)
    counts[0, 0], counts[2, 7] = 99, 99  # the layers that two executed ones replay
    recording = from_counts(counts, top_k=2)
    of = spec(tiny_config, parallel={"placement": "eplb", "redundant_experts": 2})
    found = fit_placement(of, models.load(of.model, allow_paths=True), recording, no_pass)
    assert found.fitted_to == "recording"
    assert [np.bincount(layer, minlength=8).argmax() for layer in found.placement.physical_to_logical] == [0, 7]


@pytest.mark.parametrize("policy", ["eplb", "locality"])
def test_without_a_recording_a_first_pass_counts(tiny_config, policy):
    by_rank = np.ones((2, 2, 2, 8))  # halves, layers, ranks, experts
    by_rank[..., :2] = 5
    of = spec(tiny_config, parallel={"placement": policy})
    found = fit_placement(of, models.load(of.model, allow_paths=True), None, lambda: by_rank)
    assert found.fitted_to == "first pass"
    assert found.imbalance == pytest.approx(1.0)  # the two hot experts are on different ranks
    assert found.held_out == pytest.approx(1.0)


def test_what_changes_between_the_halves_shows_in_what_is_held_out(tiny_config):
    halves = np.ones((2, 2, 2, 8))
    halves[0, ..., [0, 1]], halves[1, ..., [2, 4]] = 7, 7
    of = spec(tiny_config, parallel={"placement": "eplb"})
    found = fit_placement(of, models.load(of.model, allow_paths=True), None, lambda: halves)
    assert found.imbalance == pytest.approx(1.0)
    # by the first half 0, 2, 4 and 6 lie together: in the second they get 2 + 14 + 14 + 2 of 40
    assert found.held_out == pytest.approx(32 / 20)


def test_a_single_step_has_no_half_to_hold_out(tiny_config):
    halves = np.zeros((2, 2, 2, 8))
    halves[0] = 1
    of = spec(tiny_config, parallel={"placement": "eplb"})
    assert fit_placement(of, models.load(of.model, allow_paths=True), None, lambda: halves).held_out is None


def test_a_recording_of_single_tokens_is_halved_by_its_tokens(tiny_config):
    """The first half chooses experts 0 and 1, which eplb parts; the second 0, 2 and 7."""
    ids = np.array([[[0, 1]], [[0, 1]], [[0, 2]], [[0, 7]]], dtype=np.uint8)
    of = spec(tiny_config, layers=1, parallel={"placement": "eplb"})
    found = fit_placement(of, models.load(of.model, allow_paths=True), from_ids(ids), no_pass)
    assert found.fitted_to == "recording"
    half = place(np.array([[2, 2, 0, 0, 0, 0, 0, 0]]), 2, "eplb")
    assert found.held_out == pytest.approx(half.imbalance(np.array([[2, 0, 1, 0, 0, 0, 0, 1]]))[0])


def test_executed_layers_are_spread_over_the_recorded_ones():
    assert recorded_layers(4, 2).tolist() == [0, 2]
    assert recorded_layers(3, 3).tolist() == [0, 1, 2]
    assert recorded_layers(1, 3).tolist() == [0, 0, 0]
