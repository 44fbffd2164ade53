"""How steady a run was: each label on samples made to have it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.noise import classify, relative_to_like, warming_steps


def samples(count=200, spread=0.02, seed=0):
    return np.exp(np.random.default_rng(seed).normal(0, spread, count))


def test_a_few_percent_of_noise_are_steady():
    noise = classify(samples())
    assert (noise.label, noise.samples) == ("steady", 200)
    assert noise.spread == pytest.approx(0.02, rel=0.2)


def test_outliers_alone_make_no_run_noisy():
    ratios = samples()
    ratios[::20] *= 3
    assert classify(ratios).label == "steady"


def test_a_wide_spread_is_noisy():
    assert classify(samples(spread=0.09)).label == "noisy"


@pytest.mark.parametrize("change", [0.1, -0.1])
def test_a_trend_is_drift(change):
    noise = classify(samples() * np.linspace(1, 1 + change, 200))
    assert noise.label == "drifting"
    assert noise.drift == pytest.approx(0.75 * change, abs=0.015)  # between the middles of the outer quarters


def test_a_step_from_one_level_to_another_is_drift_too():
    assert classify(samples() * np.repeat([1.0, 1.1], 100)).label == "drifting"


def test_a_trend_too_small_to_matter_is_steady():
    assert classify(samples(spread=0.004) * np.linspace(1, 1.02, 200)).label == "steady"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_two_levels_that_alternate_are_bimodal(share):
    upper = np.random.default_rng(1).random(200) < share
    noise = classify(samples() * np.where(upper, 1.2, 1.0))
    assert noise.label == "bimodal"
    assert noise.mode_gap == pytest.approx(0.2, abs=0.02)


def test_one_level_that_a_few_steps_leave_is_not_bimodal():
    ratios = samples()
    ratios[::10] *= 1.3
    assert classify(ratios).label == "steady"


@pytest.mark.parametrize("values", [np.linspace(0.7, 1.3, 200), np.exp(np.random.default_rng(2).normal(0, 0.2, 500))])
def test_one_wide_block_is_noisy_and_not_bimodal(values):
    shuffled = np.random.default_rng(3).permutation(values)
    assert classify(shuffled).label == "noisy"


@pytest.mark.parametrize("count", [0, 1, 19])
def test_too_few_samples_have_no_label(count):
    assert classify(samples(count)).label == "unknown"


def test_a_machine_that_always_takes_the_same_is_steady():
    noise = classify(np.ones(40))
    assert (noise.label, noise.spread, noise.drift, noise.mode_gap) == ("steady", 0, 0, 0)


@given(st.lists(st.floats(0.5, 2), min_size=20, max_size=60), st.floats(0.1, 10))
def test_the_unit_does_not_matter(ratios, unit):
    one, other = classify(ratios), classify(np.array(ratios) * unit)
    assert one.spread == pytest.approx(other.spread, abs=1e-9)
    assert one.drift == pytest.approx(other.drift, abs=1e-9)


def test_each_time_is_held_against_those_of_its_kind():
    times, kinds = [2, 9, 2, 8, 2, 6, 3, 5, 2, 1], [1, 64, 1, 64, 1, 64, 1, 64, 1, 512]
    # five of kind 1 with median 2; four of kind 64 and one of 512 are too few
    assert relative_to_like(times, kinds).tolist() == [1, 1, 1, 1.5, 1]


def test_first_steps_that_were_slower_are_found():
    ratios = samples(100, 0.01)
    ratios[:7] *= 1.5
    assert warming_steps(ratios) == 7


@pytest.mark.parametrize("ratios", [samples(100), np.ones(100), samples(10), samples(100) * np.linspace(0.9, 1, 100)])
def test_a_run_that_starts_no_slower_was_warm(ratios):
    assert warming_steps(ratios) == 0
