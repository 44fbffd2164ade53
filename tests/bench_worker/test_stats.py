from statistics import mean, median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench_worker.findings import Comparison
from bench_worker.rotation import turns
from bench_worker.stats import (
    BETWEEN_RUNS,
    BETWEEN_WINDOWS,
    MIN_ROTATIONS,
    MIN_SAMPLES,
    SIGNIFICANCE,
    compare_paired,
    compare_unpaired,
    distribution,
    geometric_mean,
    holm,
    middle,
)
from tools.bench.stats import ORDER, WINDOW, autocorrelated, simulated


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
    assert compare_paired(base, base * 1.013).verdict == "slower"
    four = [compare_paired(base, base * factor) for factor in (1.011, 1.011, 1.011, 1.011)]
    assert geometric_mean(four).verdict == "slower"
    less = geometric_mean([compare_paired(base, base * 1.009)] * 8)
    assert (less.verdict, less.p_value < SIGNIFICANCE) == ("no significant change", True)


def test_times_without_any_noise_are_as_sure_as_windows_are_alike():
    """2 · exp(± 1.96 · 0.004)."""
    comparison = compare_paired([10.0] * 30, [20.0] * 30)
    assert comparison.ci95 == pytest.approx((1.98438, 2.01574), abs=1e-5)
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
)
def test_any_times_against_a_multiple_of_themselves_give_that_ratio(times, factor):
    comparison = compare_paired(times, times * factor)
    assert comparison.ratio == pytest.approx(factor)
    low, high = comparison.ci95
    assert low <= comparison.ratio <= high


def by_turn(values, turn):
    """The mean of the turns' medians, one by one."""
    return mean(median(v for v, t in zip(values, turn, strict=True) if t == which) for which in set(turn))


@st.composite
def rotations(draw):
    """Log ratios of whole rotations, enough for a median of each turn, and the turns."""
    variants, count = draw(st.integers(2, 5)), draw(st.integers(MIN_ROTATIONS, 25))
    first = draw(st.integers(0, 100)) * variants
    turn = turns(np.arange(first, first + variants * count), variants)
    return draw(arrays(float, turn.size, elements=st.floats(-2, 2))), turn


@settings(deadline=None, max_examples=40)
@given(rotations())
def test_every_turn_has_a_median_of_its_own_and_their_mean_is_the_ratio(case):
    ratios, turn = case
    assert middle(ratios, turn) == pytest.approx(by_turn(ratios.tolist(), turn.tolist()))
    comparison = compare_paired(np.ones(ratios.size), np.exp(ratios), turn)
    assert np.log(comparison.ratio) == pytest.approx(middle(ratios, turn), abs=1e-9)
    assert comparison.samples == ratios.size


@settings(deadline=None, max_examples=40)
@given(rotations())
def test_exchanging_the_sides_of_turns_turns_the_ratio_over(case):
    ratios, turn = case
    there, back = (compare_paired(np.ones(ratios.size), np.exp(sign * ratios), turn) for sign in (1, -1))
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.standard_error == pytest.approx(back.standard_error)
    assert there.p_value == pytest.approx(back.p_value)


@settings(deadline=None, max_examples=40)
@given(rotations(), st.lists(st.floats(-1, 1), min_size=5, max_size=5), st.floats(-1, 1))
def test_what_a_turn_gains_changes_nothing_and_a_constant_factor_is_found_again(case, gains, log_factor):
    """``gains`` sum to 0 over a rotation, as those do of whoever runs first."""
    ratios, turn = case
    gain = np.array(gains)[: turn.max() + 1]
    changed = ratios + (gain - gain.mean())[turn] + log_factor
    plain, moved = (compare_paired(np.ones(ratios.size), np.exp(values), turn) for values in (ratios, changed))
    assert moved.ratio == pytest.approx(plain.ratio * np.exp(log_factor))
    assert moved.standard_error == pytest.approx(plain.standard_error, rel=1e-6, abs=1e-9)


def test_two_heaps_make_the_median_of_all_uncertain_and_that_of_each_sure():
    """Whoever runs second gains 4%, in steps that differ by 1%."""
    turn = turns(np.arange(200), 2)
    ratios = np.random.default_rng(3).normal(0, 0.01, 200) + np.where(turn, 0.04, -0.04)
    with_turns, without = (compare_paired(np.ones(200), np.exp(ratios), own) for own in (turn, None))
    assert own_error(without) > 4 * own_error(with_turns)
    assert own_error(with_turns) == pytest.approx(0.01 * np.sqrt(np.pi / 400), rel=0.25)


def test_turns_of_few_rotations_are_taken_together():
    """Seven variants, of which two are compared: at nine rotations a turn has nine steps."""
    base, contender = noisy(70, 1), noisy(70, 2)
    turn, few = turns(np.arange(70), 7), 7 * (MIN_ROTATIONS - 1)
    assert compare_paired(base[:few], contender[:few], turn[:few]) == compare_paired(base[:few], contender[:few])
    logs = np.log(contender / base)
    assert compare_paired(base, contender, turn).ratio == pytest.approx(np.exp(by_turn(logs.tolist(), turn.tolist())))


def test_two_that_took_turns_alone_have_enough_rotations_with_enough_samples():
    assert MIN_SAMPLES // 2 >= MIN_ROTATIONS


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ([0, 1] * 9, "turn has 18 entries for 20 pairs; there must be one for each"),
        ([0, 1] * 9 + [0, 0], "turn is not of whole rotations; in each, every variant must run first once"),
        ([0, 1, 2] * 6 + [0, 1], "turn is not of whole rotations; in each, every variant must run first once"),
    ],
)
def test_it_refuses_turns_that_are_no_whole_rotations(turn, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        compare_paired(np.ones(20), np.ones(20), turn)


def own_error(comparison):
    """What the steps alone tell."""
    return np.sqrt(comparison.standard_error**2 - BETWEEN_WINDOWS**2)


def test_the_standard_error_of_independent_values_is_that_of_a_median():
    """Of n normal values: σ · √(π / 2n), so 0.03 · √(π / 800) for 400."""
    errors = []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0, 0.03, 400)
        errors.append(own_error(compare_paired(np.ones(400), np.exp(noise))))
    assert np.mean(errors) == pytest.approx(0.03 * np.sqrt(np.pi / 800), rel=0.15)


def test_steps_that_are_alike_are_less_sure():
    independent = autocorrelated(400, 0.0, np.random.default_rng(1))
    alike = autocorrelated(400, 0.8, np.random.default_rng(1))
    ours, theirs = (compare_paired(np.ones(400), np.exp(0.03 * noise)) for noise in (independent, alike))
    assert own_error(theirs) > 2 * own_error(ours)
    assert theirs.degrees < ours.degrees / 4


def test_longer_measurement_does_not_help_against_what_a_window_differs_by():
    many = np.exp(np.random.default_rng(1).normal(0, 0.01, 20_000))
    assert compare_paired(np.ones(20_000), many).standard_error == pytest.approx(BETWEEN_WINDOWS, rel=0.01)


@pytest.mark.parametrize(("order", "window"), [(0.0, 0.0), (ORDER, WINDOW)])
@pytest.mark.parametrize("autocorrelation", [0.0, 0.3, 0.6])
def test_intervals_hold_the_true_ratio_and_equal_variants_are_rarely_told_apart(autocorrelation, order, window):
    """`make bench ARGS=stats` does the same with 2,000 cases."""
    seen = simulated(autocorrelation, order, window, steps=120, cases=200)
    assert seen.coverage >= (0.92 if autocorrelation <= 0.3 else 0.88) - 0.04  # two standard errors of 200 cases
    assert seen.false <= 0.01


def test_runs_at_different_times_are_less_sure_and_say_so():
    base, contender = noisy(200, 1), 1.05 * noisy(200, 2)
    apart, beside = compare_unpaired(base, contender), compare_paired(base, contender)
    assert apart.ratio == beside.ratio
    assert not apart.paired
    assert apart.standard_error == pytest.approx(
        np.sqrt(beside.standard_error**2 - BETWEEN_WINDOWS**2 + 2 * BETWEEN_RUNS**2)
    )
    assert (beside.verdict, apart.verdict) == ("slower", "no significant change")
    assert compare_unpaired(base, 1.2 * contender).verdict == "slower"


def test_few_steps_at_different_times_are_not_enough():
    comparison = compare_unpaired([1.0] * 5, [2.0] * 5)
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
