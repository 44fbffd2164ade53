"""How steady a run was: each label on samples made to have it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.noise import (
    Seen,
    around,
    classify,
    decides,
    relative_to_like,
    sentence,
    two_rates,
    warming_steps,
    with_machine,
)


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


USUAL = Seen(memory=80.0, matrix=1000.0)


def probed(*bandwidths, deciding="memory", matrix=950.0):
    return around([Seen(rate, matrix) for rate in bandwidths], USUAL, deciding)


def labelled(machine, ratios=None):
    return with_machine(classify(samples() if ratios is None else ratios), machine)


def test_what_the_probes_saw_is_summed_up_beside_what_is_usual():
    found = probed(40, 76, 78, 80, 72)
    assert (found.probes, found.memory.best, found.memory.median, found.memory.lowest) == (5, 80, 76, 40)
    assert found.memory.moved == pytest.approx((78 - 72) / 76)
    assert found.memory.share == pytest.approx(0.95)
    assert (found.memory.unit, found.matrix.unit, found.matrix.share) == ("GB/s", "GFLOP/s", 0.95)


def test_a_rate_that_is_not_probed_is_not_told():
    assert around([Seen(70.0)], Seen(80.0), "memory").matrix is None
    assert around([Seen(70.0)], Seen(80.0), "matrix").deciding is None


@pytest.mark.parametrize("bandwidths", [(76, 77, 75), (68.1, 68.1), (91.9, 91.9), (80,), (78, 78, 78, 78, 49)])
def test_a_machine_as_it_was_calibrated_leaves_the_label(bandwidths):
    assert labelled(probed(*bandwidths)).label == "steady"
    assert sentence(labelled(probed(*bandwidths))) is None


@pytest.mark.parametrize(
    ("bandwidths", "told"),
    [
        ((49, 49, 50), "The memory bus gave 49 GB/s around this run, 61% of what this machine was calibrated at"),
        ((67.9,), "The memory bus gave 68 GB/s around this run, 85% of what this machine was calibrated at"),
        ((112, 112), "The memory bus gave 112 GB/s around this run, 140% of what this machine was calibrated at"),
        ((79, 79, 49, 79, 49), "The memory bus moved between 49 and 79 GB/s around this run"),
    ],
)
def test_a_steady_run_on_a_machine_that_was_not_as_usual_is_contended(bandwidths, told):
    found = labelled(probed(*bandwidths))
    assert found.label == "contended"
    assert sentence(found) == f"{told}: its times don't compare with those of another time."


def test_a_run_of_matrix_products_is_judged_by_their_rate():
    assert labelled(probed(49, 49, deciding="matrix")).label == "steady"
    found = labelled(probed(80, 80, deciding="matrix", matrix=600.0))
    assert found.label == "contended"
    assert sentence(found).startswith("The matrix products gave 600 GFLOP/s around this run, 60% of")


def test_a_run_that_neither_rate_sets_the_time_of_is_not_judged_by_them():
    found = labelled(probed(20, 20, deciding=None))
    assert (found.label, sentence(found)) == ("steady", None)
    assert found.around.memory.median == 20


def test_steps_that_tell_against_a_run_themselves_keep_their_label_and_the_machine_is_told_beside():
    drifting = samples() * np.linspace(1, 1.2, 200)
    found = labelled(probed(49, 49), drifting)
    assert found.label == "drifting"
    assert sentence(found).startswith("The memory bus gave 49 GB/s")


def test_a_run_too_short_to_judge_its_steps_is_judged_by_the_machine():
    assert labelled(probed(49, 49), samples(7)).label == "contended"
    assert labelled(probed(79, 79), samples(7)).label == "unknown"


def test_without_probes_there_is_nothing_to_say_of_the_machine():
    assert sentence(classify(samples())) is None


@pytest.mark.parametrize(
    ("memory", "compute", "found"),
    [(90, 10, "memory"), (10, 90, "matrix"), (20, 20, "memory"), (19, 1, None), (1, 19, None), (0, 0, None)],
)
def test_the_larger_floor_decides_where_it_is_a_fifth_of_the_time(memory, compute, found):
    assert decides(memory, compute, 100) == found


def test_rates_that_fall_into_two_are_told_apart():
    assert two_rates([49, 79, 50, 78, 49, 79, 48, 80]) == pytest.approx((49, 79), rel=0.01)


@pytest.mark.parametrize(
    "rates",
    [
        [49, 79, 49, 79, 49, 79, 49],  # too few
        [75, 76, 77, 78, 79, 80, 81, 82],  # one block
        [50, 55, 50, 55, 50, 55, 50, 55],  # near each other
        [79, 79, 79, 79, 79, 79, 79, 79],
    ],
)
def test_rates_of_one_level_are_one(rates):
    assert two_rates(rates) is None
