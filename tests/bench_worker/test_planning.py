"""What will be executed, and what it needs, before anything is allocated."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_worker import capacity
from bench_worker.errors import DoesNotFit, SpecError
from bench_worker.planning import (
    Condition,
    memory_needed,
    network_key,
    plan_condition,
    recordings_of,
    refuse_what_does_not_fit,
)
from bench_worker.rotation import whole_rotations
from bench_worker.spec import Experiment, Library, PlannedRun
from bench_worker.stats import MIN_SAMPLES
from bench_worker.workload.recordings import from_counts, write_recording


def conditions(**changes: Any) -> list[Condition]:
    document = {
        "schema": 1,
        "base": {"model": "olmoe-1b-7b", "workload": {"requests": 2, "prompt_tokens": 16}},
    } | changes
    return [plan_condition(Experiment.model_validate(document).runs(), {}, allow_paths=False)]


def test_every_corner_of_the_seven_strategies_has_enough_steps_for_an_answer() -> None:
    """And most of them decode: where half of the steps read prompts, the median lies between the two."""
    sample = Path(__file__).parents[2] / "samples" / "seven-strategies.json"
    experiment = Experiment.model_validate_json(sample.read_bytes())
    assert len(experiment.variants()) == 7
    for _, runs in groupby(experiment.runs(), key=lambda run: run.condition):
        batches = plan_condition(list(runs), {}, allow_paths=False).batches
        kept = whole_rotations(range(len(batches)), 7).sum()
        assert kept >= 2 * MIN_SAMPLES
        assert sum(batch.prefill_tokens > 0 for batch in batches) < kept / 8


def needs_bytes(condition: Condition, place: int = 0) -> int:
    return condition.fit(condition.planned[place].spec, None).total_bytes


def test_variants_that_share_weights_are_counted_once() -> None:
    [condition] = conditions(vary={"field": "kernels.fusion", "values": ["gate_up", "none"]})
    assert len({network_key(run.spec) for run in condition.planned}) == 1
    needed = memory_needed([condition], None)
    assert (needed.models, needed.fit.total_bytes) == ("olmoe-1b-7b", needs_bytes(condition))


def test_the_experts_of_each_quantization_are_counted_beside_one_another() -> None:
    """And what stands around them once."""
    kernels = {"experts": "loop", "quantization": "none"}
    base = {"model": "olmoe-1b-7b", "kernels": kernels, "workload": {"requests": 2, "prompt_tokens": 16}}
    values = ["none", "int8", "int4"]
    [condition] = conditions(base=base, vary={"field": "kernels.quantization", "values": values})
    assert len({network_key(run.spec) for run in condition.planned}) == 1
    experts = [condition.fit(run.spec, None).parts["experts"] for run in condition.planned]
    assert experts[0] > experts[1] > experts[2]
    assert memory_needed([condition], None).fit.total_bytes == needs_bytes(condition) + sum(experts[1:])


def test_models_side_by_side_are_added_with_one_process() -> None:
    [condition] = conditions(vary={"field": "model", "values": ["olmoe-1b-7b", "qwen3-30b-a3b"]})
    both = needs_bytes(condition, 0) + needs_bytes(condition, 1) - capacity.PROCESS_BYTES - capacity.PROBE_BYTES
    needed = memory_needed([condition], both)
    assert (needed.models, needed.fit.total_bytes) == ("olmoe-1b-7b and qwen3-30b-a3b", both)
    refuse_what_does_not_fit([condition], both)
    with pytest.raises(
        DoesNotFit, match=r"^measuring olmoe-1b-7b and qwen3-30b-a3b needs [\d.]+ GB and the device has"
    ):
        refuse_what_does_not_fit([condition], both - 1)


def test_on_a_gpu_neither_kernels_nor_probes_are_counted() -> None:
    [condition] = conditions()
    kept = condition.fit(condition.planned[0].spec, None).parts["kernels"]
    there = memory_needed([condition], None, on_gpu=True).fit.total_bytes
    assert there == needs_bytes(condition) - kept - capacity.PROBE_BYTES
    refuse_what_does_not_fit([condition], there, on_gpu=True)
    with pytest.raises(DoesNotFit):
        refuse_what_does_not_fit([condition], there)


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


def recorded_run(recording: str, model: str = "olmoe-1b-7b") -> list[PlannedRun]:
    base = {"model": model, "load": {"profile": "recorded", "recording": recording}}
    return Experiment.model_validate({"base": base}, context=Library(allow_paths=True)).runs()


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        (np.ones((2, 32), np.int64), "load.npz: holds 32 experts; olmoe-1b-7b has 64"),
        (
            np.array([[1000] + [1] * 63]),
            "load.npz: gives expert 0 of layer 0 94.1% of the assignments; at 8 experts a token, as in olmoe-1b-7b, "
            "none can have more than 12.5%",
        ),
    ],
)
def test_a_recording_must_be_a_load_of_the_model(tmp_path: Path, counts: np.ndarray, sentence: str) -> None:
    path = tmp_path / "load.npz"
    write_recording(path, from_counts(counts))
    with pytest.raises(SpecError) as refused:
        recordings_of(recorded_run(str(path)), {}, allow_paths=True)
    assert (refused.value.field, refused.value.message) == ("base.load.recording", sentence)


def test_a_recording_is_read_once_and_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "abc.npz"
    write_recording(path, from_counts(np.ones((2, 64), np.int64), top_k=8))
    found = recordings_of(recorded_run("mine") * 2 + recorded_run("mine"), {"mine": path})
    assert list(found) == ["mine"]
    with pytest.raises(SpecError, match=r"^base\.load\.recording: ours: no recording of that name is here$"):
        recordings_of(recorded_run("ours"), {"mine": path})
    path.write_bytes(b"")
    with pytest.raises(SpecError, match=r"^base\.load\.recording: mine: is empty$"):
        recordings_of(recorded_run("mine"), {"mine": path})


def test_runs_without_a_recording_need_none() -> None:
    assert recordings_of(conditions()[0].planned, {}) == {}


MOONCAKE = """{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": 600, "output_length": 1, "hash_ids": [1, 3]}
"""


def planned_condition(trace: Path, **workload: Any) -> Condition:
    base = {"model": "olmoe-1b-7b", "workload": {"requests": 2, "trace": str(trace), "concurrency": 1} | workload}
    experiment = Experiment.model_validate({"base": base}, context=Library(allow_paths=True))
    return plan_condition(experiment.runs(), {}, allow_paths=True)


def test_an_open_loop_arrives_as_recorded_or_at_a_rate(tmp_path: Path) -> None:
    trace = tmp_path / "mine.jsonl"
    trace.write_text(MOONCAKE)
    closed = planned_condition(trace)
    assert (closed.is_open, closed.units, closed.most_tokens) == (False, 3, 600)
    recorded = planned_condition(trace, arrivals="trace", speedup=2.0)
    assert (recorded.is_open, recorded.units, recorded.most_tokens) == (True, 2, 2048)
    assert recorded.arrival_us().tolist() == [0, 1_500_000]
    random = planned_condition(trace, arrivals="poisson", rate=5.0)
    assert random.arrival_us()[0] == 0 < random.arrival_us()[1]
    assert random.arrival_us().tolist() == random.arrival_us().tolist()
    step = recorded.open_loop().next(0.0)
    assert step is not None
    assert (step.start_us, step.batch.prefill_tokens) == (0.0, 600)


def test_a_trace_without_prefixes_can_not_reuse_any(tmp_path: Path) -> None:
    trace = tmp_path / "mine.jsonl"
    trace.write_text(MOONCAKE)
    assert planned_condition(trace).prefixes is None
    reusing = planned_condition(trace, prefix_reuse=True)
    assert reusing.prefixes == [[1, 2], [1, 3]]
    assert [batch.reused_tokens for batch in reusing.batches] == [0, 0, 512]
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n1,5,6\n")
    with pytest.raises(SpecError) as refused:
        planned_condition(trace, prefix_reuse=True)
    assert refused.value.field == "base.workload.prefix_reuse"
    assert refused.value.message == "mine.jsonl: names no prefixes; only Mooncake's JSON lines do, as hash_ids"


def test_a_request_beyond_the_kv_cache_is_refused_with_its_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "mine.jsonl"
    trace.write_text(MOONCAKE)
    assert len(planned_condition(trace, kv_tokens=601).batches) == 3
    with pytest.raises(SpecError) as refused:
        planned_condition(trace, kv_tokens=600)
    assert str(refused.value) == (
        "base.workload.kv_tokens: 600 tokens can't hold a request of 600 prompt and 2 output tokens; "
        "it leaves 601 in the KV cache"
    )
