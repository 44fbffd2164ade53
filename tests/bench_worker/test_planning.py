"""What will be executed, and what it needs, before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench_worker import capacity
from bench_worker.errors import DoesNotFit, SpecError
from bench_worker.planning import Condition, memory_needed, network_key, plan_condition, refuse_what_does_not_fit
from bench_worker.spec import Experiment


def conditions(**changes: Any) -> list[Condition]:
    document = {
        "schema": 1,
        "base": {"model": "olmoe-1b-7b", "workload": {"requests": 2, "prompt_tokens": 16}},
    } | changes
    return [plan_condition(Experiment.model_validate(document).runs(), {}, allow_paths=False)]


def needs_bytes(condition: Condition, place: int = 0) -> int:
    spec = condition.planned[place].spec
    return capacity.fit_measurement(spec, None, tokens_per_sequence=condition.longest).total_bytes


def test_variants_that_share_weights_are_counted_once() -> None:
    [condition] = conditions(vary={"field": "kernels.fusion", "values": ["gate_up", "none"]})
    assert len({network_key(run.spec) for run in condition.planned}) == 1
    needed = memory_needed([condition], None)
    assert (needed.models, needed.fit.total_bytes) == ("olmoe-1b-7b", needs_bytes(condition))


def test_models_side_by_side_are_added_with_one_process() -> None:
    [condition] = conditions(vary={"field": "model", "values": ["olmoe-1b-7b", "qwen3-30b-a3b"]})
    both = needs_bytes(condition, 0) + needs_bytes(condition, 1) - capacity.PROCESS_BYTES
    needed = memory_needed([condition], both)
    assert (needed.models, needed.fit.total_bytes) == ("olmoe-1b-7b and qwen3-30b-a3b", both)
    refuse_what_does_not_fit([condition], both)
    with pytest.raises(
        DoesNotFit, match=r"^measuring olmoe-1b-7b and qwen3-30b-a3b needs [\d.]+ GB and the device has"
    ):
        refuse_what_does_not_fit([condition], both - 1)


def test_each_network_counts_at_the_condition_where_it_needs_most() -> None:
    small, large = conditions() + conditions(
        base={"model": "olmoe-1b-7b", "workload": {"requests": 8, "prompt_tokens": 2048}}
    )
    assert memory_needed([small, large], None).fit.total_bytes == needs_bytes(large)
    assert needs_bytes(small) < needs_bytes(large)


def test_a_trace_that_is_too_short_is_a_bad_value_of_the_experiment(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n")
    [condition] = conditions()
    work = condition.planned[0].spec.workload.model_copy(update={"trace": "mine"})
    planned = condition.planned[0]
    planned = type(planned)("base", "", planned.spec.model_copy(update={"workload": work}))
    with pytest.raises(SpecError) as refused:
        plan_condition([planned], {"mine": file}, allow_paths=False)
    assert refused.value.field == "base.workload.trace"
    assert refused.value.message == "mine: holds 1 requests, and 2 are asked for"
