"""Which expert kernels a pool can run, by the reports of its machines."""

from __future__ import annotations

from typing import Any

import pytest

from bench_worker.spec import SpecError
from tests.webapp.experiments import make
from webapp.experiments import backends
from webapp.experiments.backends import Missing

ALL = make.backends()
WITHOUT = make.backends("zentorch")
AWAY = "'zentorch' can't run: it is not installed here"
WHOLE = "'whole' is not something 'loop' can do; use none or gate_up"


def asked(vary: dict[str, Any] | None = None, **kernels: str) -> Any:
    return make.experiment(base={"model": "olmoe-1b-7b", "kernels": kernels}, vary=vary)


def test_where_everything_runs_nothing_is_missing() -> None:
    assert backends.missing([ALL, ALL], "zentorch", "whole") == []


def test_a_machine_that_reported_nothing_is_taken_to_run_everything() -> None:
    assert backends.reports([{"name": "old"}, {"backends": ALL}]) == [{}, ALL]
    assert backends.missing([{}], "zentorch", "whole") == []
    assert backends.missing([], "zentorch", "whole") == []
    backends.refuse(asked(experts="zentorch"), [{}])
    backends.refuse(asked(experts="zentorch"), [])


def test_a_backend_that_no_machine_has_is_missing_everywhere() -> None:
    assert backends.missing([WITHOUT], "auto", "none") == [Missing("experts", "zentorch", AWAY, 1, True, False)]


def test_a_backend_that_is_chosen_and_missing_says_so_and_nothing_of_its_fusions() -> None:
    assert backends.missing([WITHOUT], "zentorch", "none") == [Missing("experts", "zentorch", AWAY, 1, True, True)]


@pytest.mark.parametrize("other", [ALL, {}])
def test_a_backend_that_some_machines_have_is_not_missing_everywhere(other: backends.Report) -> None:
    found = backends.missing([WITHOUT, other, WITHOUT], "zentorch", "none")
    assert found == [Missing("experts", "zentorch", AWAY, 2, False, True)]


def test_fusions_are_those_of_the_chosen_backend() -> None:
    assert backends.missing([ALL], "loop", "whole") == [Missing("fusion", "whole", WHOLE, 1, True, True)]
    assert backends.missing([ALL], "loop", "none") == [Missing("fusion", "whole", WHOLE, 1, True, False)]
    assert backends.missing([ALL], "zentorch", "none") == []


def test_a_reason_of_another_kind_stays_whole() -> None:
    assert (
        backends.bare("beside the weights it needs 3.0 GB: too much") == "beside the weights it needs 3.0 GB: too much"
    )
    assert backends.bare(f"kernels.fusion: {WHOLE}") == WHOLE


def test_a_value_that_nothing_is_known_of_is_left_to_the_check() -> None:
    assert backends.missing([ALL], "nonsense", "") == []


def test_what_no_machine_can_run_is_refused_under_its_field() -> None:
    with pytest.raises(SpecError) as caught:
        backends.refuse(asked(experts="zentorch"), [WITHOUT, WITHOUT])
    assert (caught.value.field, caught.value.value, caught.value.message) == ("base.kernels.experts", "zentorch", AWAY)
    with pytest.raises(SpecError) as caught:
        backends.refuse(asked(experts="loop", fusion="whole"), [ALL])
    assert (caught.value.field, caught.value.value, caught.value.message) == ("base.kernels.fusion", "whole", WHOLE)


def test_a_varied_value_is_refused_under_the_values() -> None:
    with pytest.raises(SpecError) as caught:
        backends.refuse(asked({"field": "kernels.experts", "values": ["loop", "zentorch"]}), [WITHOUT])
    assert (caught.value.field, caught.value.value) == ("vary.values", "zentorch")
    with pytest.raises(SpecError) as caught:
        backends.refuse(asked({"field": "kernels.fusion", "values": ["none", "whole"]}, experts="loop"), [ALL])
    assert (caught.value.field, caught.value.value) == ("vary.values", "whole")


def test_what_one_machine_can_run_is_not_refused() -> None:
    backends.refuse(asked(experts="zentorch"), [WITHOUT, ALL])
    backends.refuse(asked({"field": "kernels.experts", "values": ["loop", "zentorch"]}), [ALL])


def test_what_the_model_keeps_from_a_backend_is_missing_on_every_machine() -> None:
    spec = asked().base
    reason = "'deepspeed_layer' always renormalises weights; olmoe-1b-7b does not renormalise"
    found = backends.missing([backends.for_spec(ALL, spec)] * 2, "deepspeed_layer", "none")
    assert found == [Missing("experts", "deepspeed_layer", reason, 2, True, True)]
    with pytest.raises(SpecError) as caught:
        backends.refuse(asked(experts="deepspeed_layer"), [])
    assert (caught.value.field, caught.value.message) == ("base.kernels.experts", reason)


def test_what_a_machine_lacks_comes_before_what_the_model_keeps_from_it() -> None:
    found = backends.for_spec(WITHOUT, asked().base)
    assert found["zentorch"]["whole"] == f"kernels.experts: {AWAY}"
    assert found["auto"] == WITHOUT["auto"]


def test_a_format_that_a_kernel_does_not_compute_is_refused_under_its_own_field() -> None:
    with pytest.raises(SpecError) as caught:
        backends.refuse(asked(experts="deepspeed", quantization="int8"), [ALL])
    assert (caught.value.field, caught.value.value) == ("base.kernels.quantization", "int8")
    assert caught.value.message == "'int8' is not something 'deepspeed' can compute; use loop, zentorch or auto"
    with pytest.raises(SpecError) as caught:
        backends.refuse(asked({"field": "kernels.quantization", "values": ["none", "int4"]}, experts="zentorch"), [ALL])
    assert (caught.value.field, caught.value.value) == ("vary.values", "int4")
    backends.refuse(asked({"field": "kernels.quantization", "values": ["none", "int8", "int4"]}, experts="auto"), [ALL])


def test_what_a_format_leaves_is_what_the_form_offers() -> None:
    spec = asked(experts="auto", quantization="int4").base
    found = backends.missing([backends.for_spec(ALL, spec)], "auto", "gate_up")
    assert {one.value for one in found if one.field == "experts"} == {
        "deepspeed", "zentorch", "padded", "deepspeed_layer"
    }  # fmt: skip
    assert [one.value for one in found if one.field == "fusion"] == ["whole"]
