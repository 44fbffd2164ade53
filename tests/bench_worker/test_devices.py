"""Named devices, and the least number of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker import models
from bench_worker.capacity import fit
from bench_worker.devices import DEVICES, MOST, enough, named
from bench_worker.spec import Layout, Spec


def spec(model="qwen3-30b-a3b", **parts):
    return Spec.model_validate({"model": model, **parts})


def test_the_devices_have_the_memory_that_their_makers_state():
    assert {device.name: device.memory_bytes / 1e9 for device in DEVICES.values()} == {
        "H100": 80, "H200": 141, "B200": 180, "MI300X": 192, "A100": 80, "L40S": 48
    }  # fmt: skip
    assert all("datasheet" in device.source for device in DEVICES.values())


def test_a_device_is_found_in_whatever_case():
    assert named("mi300x") == named("MI300X") == DEVICES["MI300X"]
    with pytest.raises(ValueError, match=r"^'V900' is not one of H100, H200, B200, MI300X, A100, L40S$"):
        named("V900")


def test_one_is_enough_where_it_all_fits():
    found = enough(spec(), DEVICES["H100"].memory_bytes)
    assert (found.devices, found.layout) == (1, Layout())


def test_two_share_what_one_can_not_hold():
    """61 GB of weights over two L40S: TP 2 halves all of them, DP 2 the experts alone."""
    found = enough(spec(), DEVICES["L40S"].memory_bytes)
    assert (found.devices, found.layout) == (2, Layout(tp=2, dp=1))
    assert found.fit == fit(spec(parallel={"layout": {"tp": 2}}), DEVICES["L40S"].memory_bytes)


def test_an_experiments_own_layout_does_not_matter():
    assert enough(spec(parallel={"layout": {"dp": 4}}), 48 * 10**9) == enough(spec(), 48 * 10**9)


def test_what_no_number_of_devices_holds_has_no_answer():
    """The cache of one sequence of a million tokens, in latents that aren't divided, is 70 GB on every rank."""
    deepseek = spec("deepseek-v3", workload={"concurrency": 1})
    assert enough(deepseek, 48 * 10**9, tokens_per_sequence=1_000_000) is None
    assert enough(deepseek, 80 * 10**9, tokens_per_sequence=1_000_000).devices <= MOST


@given(st.sampled_from(list(models.presets())), st.integers(10, 200))
def test_fewer_devices_do_not_fit_in_any_layout(model, gb):
    found = enough(spec(model), gb * 10**9)
    if found is None:
        return
    assert found.fit.fits
    assert found.layout.tp * found.layout.dp == found.devices
    fewer = found.devices - 1
    heads = models.load(model).attention.heads
    for tp in range(1, fewer + 1):
        if fewer % tp == 0 and heads % tp == 0:
            assert not fit(spec(model, parallel={"layout": {"tp": tp, "dp": fewer // tp}}), gb * 10**9).fits
