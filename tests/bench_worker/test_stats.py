import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench_worker.findings import Comparison
from bench_worker.stats import (
    BETWEEN_RUNS,
    MIN_SAMPLES,
    compare_paired,
    compare_unpaired,
    distribution,
    geometric_mean,
    holm,
    whole_rotations,
)
from tools.bench.stats import autocorrelated, simulated


def test_percentiles_interpolate_between_order_statistics():
    """Of 10, 20, …, 50 the p-th percentile stands at rank 4·p/100: p90 = 46, p95 = 48, p99 = 49.6."""
    summary = distribution([50, 10, 40, 20, 30])
    assert summary.model_dump() == pytest.approx(
        {"p50": 30, "p90": 46, "p95": 48, "p99": 49.6, "mean": 30, "samples": 5}
    )


def test_one_value_is_every_percentile():
    summary = distribution(np.array([7.0]))
    assert set(summary.model_dump(exclude={"samples"}).values()) == {7.0}
    assert summary.samples == 1


@pytest.mark.parametrize("values", [[], np.array([])])
def test_no_values_have_no_distribution(values):
    assert distribution(values) is None


def test_figures_are_plain_numbers():
    assert {type(v) for v in distribution(np.float32([1, 2])).model_dump().values()} == {float, int}


def noisy(count, seed=0, spread=0.03, median=1000.0):
    """Times around ``median`` with heavy tails (Student's t, 3 degrees of freedom)."""
    return median * np.exp(spread * np.random.default_rng(seed).standard_t(3, count))


def test_the_ratio_is_the_median_of_the_ratios_step_by_step():
    base = np.arange(1.0, 102.0)
    comparison = compare_paired(base, base * np.where(np.arange(101) < 60, 1.2, 9.0))
    assert comparison.ratio == pytest.approx(1.2)
    assert comparison.samples == 101
    assert comparison.paired


@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "slower"), (1 / 1.05, "faster"), (1, "no significant change")])
def test_a_change_is_told_from_noise(factor, verdict):
    comparison = compare_paired(noisy(200, 1), factor * noisy(200, 2))
    assert comparison.verdict == verdict
    low, high = comparison.ci95
    assert low < factor < high
    assert low < comparison.ratio < high


def test_exchanging_the_sides_turns_the_ratio_over():
    one, other = noisy(60, 1), 1.1 * noisy(60, 2)
    there, back = compare_paired(one, other), compare_paired(other, one)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.ci95 == pytest.approx([1 / end for end in reversed(back.ci95)])
    assert there.p_value == pytest.approx(back.p_value)


def test_the_same_times_give_the_same_comparison():
    assert compare_paired(noisy(50, 1), noisy(50, 2)) == compare_paired(noisy(50, 1), noisy(50, 2))


def test_a_change_below_the_least_effect_is_none_however_sure_it_is():
    base = np.full(500, 100.0)
    assert compare_paired(base, base * 1.009).verdict == "no significant change"
    assert compare_paired(base, base * 1.009, least_effect=0.005).verdict == "slower"
    assert compare_paired(base, base * 1.011).verdict == "slower"


def test_times_without_any_noise_have_an_interval_of_one_point():
    comparison = compare_paired([10.0] * 30, [20.0] * 30)
    assert comparison.ci95 == pytest.approx((2.0, 2.0))
    assert comparison.p_value == 0
    assert compare_paired([10.0] * 30, [10.0] * 30).p_value == 1


def test_few_pairs_have_a_ratio_and_nothing_that_says_how_sure_it_is():
    comparison = compare_paired([1.0] * (MIN_SAMPLES - 1), [2.0] * (MIN_SAMPLES - 1))
    assert comparison.verdict == "not enough samples"
    assert comparison.ratio == pytest.approx(2)
    assert comparison.ci95 is None
    assert comparison.p_value is None


@pytest.mark.parametrize(
    ("base", "contender", "message"),
    [
        ([1.0] * 20, [1.0] * 21, "base has 20 times and contender 21; pairs need as many of both"),
        ([], [], "base has no times; it must be a list of at least one"),
        ([1.0, 0.0], [1.0, 1.0], "base holds 0; times must be above 0 and finite"),
        ([1.0, 1.0], [1.0, np.nan], "contender holds nan; times must be above 0 and finite"),
        ([1.0, 1.0], [1.0, np.inf], "contender holds inf; times must be above 0 and finite"),
    ],
)
def test_it_refuses_times_that_make_no_pairs(base, contender, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        compare_paired(base, contender)
    if len(base) == len(contender):
        with pytest.raises(ValueError, match=f"^{message}$"):
            compare_unpaired(base, contender)


@settings(deadline=None, max_examples=40)
@given(
    times=arrays(float, st.integers(20, 60), elements=st.floats(1e-3, 1e9)),
    factor=st.floats(0.01, 100),
    seed=st.integers(0, 9),
)
def test_any_times_against_a_multiple_of_themselves_give_that_ratio(times, factor, seed):
    comparison = compare_paired(times, times * factor, seed=seed)
    assert comparison.ratio == pytest.approx(factor)
    low, high = comparison.ci95
    assert low <= comparison.ratio <= high


def test_the_standard_error_of_independent_values_is_that_of_a_median():
    """Of n normal values: σ · √(π / 2n), so 0.03 · √(π / 800) for 400."""
    errors = []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0, 0.03, 400)
        errors.append(compare_paired(np.ones(400), np.exp(noise)).standard_error)
    assert np.mean(errors) == pytest.approx(0.03 * np.sqrt(np.pi / 800), rel=0.15)


def test_steps_that_are_alike_are_less_sure():
    independent = autocorrelated(400, 0.0, np.random.default_rng(1))
    alike = autocorrelated(400, 0.8, np.random.default_rng(1))
    ours, theirs = (compare_paired(np.ones(400), np.exp(0.03 * noise)) for noise in (independent, alike))
    assert theirs.standard_error > 2 * ours.standard_error
    assert theirs.degrees < ours.degrees / 4


@pytest.mark.parametrize("autocorrelation", [0.0, 0.3, 0.6])
def test_intervals_hold_the_true_ratio_and_equal_variants_are_rarely_told_apart(autocorrelation):
    """`make bench ARGS=stats` does the same with 2,000 cases."""
    seen = simulated(autocorrelation, steps=120, cases=200)
    assert seen.coverage >= (0.92 if autocorrelation <= 0.3 else 0.88) - 0.04  # two standard errors of 200 cases
    assert seen.false <= 0.01


def test_a_whole_rotation_has_every_variant_first_once():
    """Two passes of seven steps with three variants: six of each."""
    index = [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6]
    assert whole_rotations(index, 3).tolist() == ([True] * 6 + [False]) * 2


@pytest.mark.parametrize(("index", "kept"), [([], 0), ([0, 1], 0), ([0, 1, 2], 3), ([0, 0, 0], 0), ([0, 1, 2, 3], 3)])
def test_steps_that_complete_no_rotation_are_left_out(index, kept):
    assert whole_rotations(index, 3).sum() == kept


def test_every_step_of_a_single_variant_is_a_rotation():
    assert whole_rotations([0, 1, 2, 0], 1).all()


def test_runs_at_different_times_are_less_sure_and_say_so():
    base, contender = noisy(200, 1), 1.05 * noisy(200, 2)
    apart, beside = compare_unpaired(base, contender, matched=True), compare_paired(base, contender)
    assert apart.ratio == beside.ratio
    assert not apart.paired
    assert apart.standard_error == pytest.approx(np.sqrt(beside.standard_error**2 + 2 * BETWEEN_RUNS**2))
    assert (beside.verdict, apart.verdict) == ("slower", "no significant change")
    assert compare_unpaired(base, 1.2 * contender).verdict == "slower"


def test_unpaired_times_may_differ_in_number():
    comparison = compare_unpaired([10.0] * 40, [20.0] * 25)
    assert comparison.ratio == pytest.approx(2)
    assert comparison.samples == 25
    assert compare_unpaired([10.0] * 40, [20.0] * 19).verdict == "not enough samples"


def test_few_matched_steps_at_different_times_are_not_enough():
    comparison = compare_unpaired([1.0] * 5, [2.0] * 5, matched=True)
    assert (comparison.verdict, comparison.paired, comparison.ci95) == ("not enough samples", False, None)


def found(ratio, p_value, **more):
    verdict = "slower" if p_value is not None else "not enough samples"
    return Comparison(ratio=ratio, p_value=p_value, samples=100, verdict=verdict, **more)


def test_p_values_are_corrected_as_holm_does():
    """Of 0.001, 0.01, 0.0008 the smallest counts 3 times, the next twice, and no later one is smaller."""
    corrected = holm([found(1.1, 0.001), found(1.1, 0.01), found(1.1, 0.0008), found(1.1, None)])
    assert [one.p_value for one in corrected] == [
        pytest.approx(0.0024),
        pytest.approx(0.01),
        pytest.approx(0.0024),
        None,
    ]
    assert [one.verdict for one in corrected] == ["slower", "no significant change", "slower", "not enough samples"]
    assert [one.family for one in corrected] == [3, 3, 3, 1]


def test_a_corrected_p_value_is_a_probability_still():
    assert [one.p_value for one in holm([found(1.1, 0.6), found(1.1, 0.9)])] == [1.0, 1.0]


def test_nothing_needs_no_correction():
    assert holm([]) == []


def test_the_geometric_mean_over_conditions_has_an_interval():
    """√(1.1 · 1.21 …): of 1.1 and 1.1³ it is 1.21; two errors of 0.01 and 0.03 make √(0.01² + 0.03²) / 2."""
    one, other = (found(r, 0.0, standard_error=e, degrees=50.0) for r, e in ((1.1, 0.01), (1.1**3, 0.03)))
    mean = geometric_mean([one, other])
    assert mean.ratio == pytest.approx(1.21)
    assert mean.standard_error == pytest.approx(np.sqrt(0.01**2 + 0.03**2) / 2)
    assert mean.samples == 200
    assert mean.verdict == "slower"
    low, high = mean.ci95
    assert low < 1.21 < high


def test_a_condition_without_enough_samples_leaves_the_mean_without():
    mean = geometric_mean([found(1.1, 0.0, standard_error=0.01, degrees=50.0), found(1.3, None)])
    assert mean.verdict == "not enough samples"
    assert mean.ratio == pytest.approx(np.sqrt(1.1 * 1.3))
    assert geometric_mean([]) is None
