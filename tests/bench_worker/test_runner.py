"""Whole experiments on a small model: what is measured, in which order, and what is refused."""

from itertools import count, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench_worker import bench, calibrate, capacity, environment, planning, runner
from bench_worker import variant as variant_module
from bench_worker.errors import DoesNotFit, SpecError, Unavailable
from bench_worker.kernels import permute, zentorch
from bench_worker.result import Result
from bench_worker.routing import ROUTERS
from bench_worker.routing.solvers import SOLVERS
from bench_worker.runner import Canceled, run_experiment
from bench_worker.spec import Experiment, Library
from bench_worker.workload.recordings import from_ids, write_recording


class Silent:
    def __init__(self):
        self.phases, self.runs = [], []

    def progress(self, phase, done, total, variant="", condition=""):
        self.phases.append((phase, done, total, variant, condition))

    def finished(self, run):
        self.runs.append((run.variant, run.condition))


@pytest.fixture
def experiment(tiny_config):
    def make(vary=None, conditions=({"concurrency": 2, "prompt_tokens": 6},), measure=None, **base):
        workload = {"requests": 5, "output_tokens": 4, "max_batch_tokens": 8, **base.pop("workload", {})}
        document = {
            "base": {"model": str(tiny_config), "layers": 2, "workload": workload, **base},
            "vary": vary,
            "conditions": list(conditions),
            "measure": {"warmup_steps": 1, **(measure or {})},
        }
        return Experiment.model_validate(document, context=Library(allow_paths=True))

    return make


def measure(experiment, **kwargs):
    report = Silent()
    return run_experiment(experiment, report, allow_paths=True, **kwargs), report


def test_every_token_of_the_trace_is_computed_once(experiment):
    workload = {"requests": 20, "output_tokens": 9, "max_batch_tokens": 100}
    result, _ = measure(experiment(workload=workload, conditions=[{"concurrency": 3}]))
    steps, requests = result.runs[0].steps, result.runs[0].requests
    assert len(requests.prompt_tokens) == 20
    assert sum(steps.prefill_tokens) == sum(requests.prompt_tokens)
    assert sum(steps.decode_tokens) == sum(n - 1 for n in requests.output_tokens)
    tokens = [p + d for p, d in zip(steps.prefill_tokens, steps.decode_tokens, strict=True)]
    assert steps.assignments == [2 * 2 * t for t in tokens]  # top-2 in each of two layers


def test_variants_of_a_condition_run_the_same_batches(experiment):
    vary = {"field": "routing.top_k", "values": [1, 2, 4]}
    conditions = [{"concurrency": 1, "prompt_tokens": 3}, {"concurrency": 4, "prompt_tokens": 7}]
    result, report = measure(experiment(vary, conditions))
    assert report.runs == [(v, c) for c in ("1×3", "4×7") for v in ("1", "2", "4")]
    for condition in ("1×3", "4×7"):
        runs = [run for run in result.runs if run.condition == condition]
        assert len({tuple(run.steps.prefill_tokens) for run in runs}) == 1
        assert [run.steps.assignments[0] // runs[0].steps.assignments[0] for run in runs] == [1, 2, 4]


def test_the_order_of_the_variants_rotates(experiment, monkeypatch):
    order = []
    step = variant_module.Variant.step
    monkeypatch.setattr(
        variant_module.Variant,
        "step",
        lambda self, *args: (order.append(self.spec.routing.top_k), step(self, *args))[1],
    )
    measure(experiment({"field": "routing.top_k", "values": [1, 2]}, measure={"warmup_steps": 0}))
    plain = [k for place, k in enumerate(order) if place >= 4]  # step 0 runs each variant twice: both clocks
    assert plain[:6] == [2, 1, 1, 2, 2, 1]


def test_variants_of_one_model_share_their_weights(experiment, monkeypatch):
    made = []
    network = bench.Network
    monkeypatch.setattr(bench, "Network", lambda *args: (made.append(args[1]), network(*args))[1])
    measure(experiment({"field": "kernels.fusion", "values": ["none", "gate_up"]}))
    assert len(made) == 1


def test_variants_are_compared_and_the_result_says_what_the_step_goes_to(experiment):
    vary = {"field": "routing.top_k", "values": [1, 2, 4]}
    conditions = [{"concurrency": 1, "prompt_tokens": 3}, {"concurrency": 4, "prompt_tokens": 7}]
    result, _ = measure(experiment(vary, conditions, workload={"requests": 12}))
    assert [(one.base, one.contender, one.condition) for one in result.comparisons] == [
        ("1", "2", "1×3"), ("1", "4", "1×3"), ("1", "2", "4×7"), ("1", "4", "4×7"), ("1", "2", None), ("1", "4", None)
    ]  # fmt: skip
    assert result.comparisons[0].quantities["step_us"].samples % 3 == 0
    assert sum(result.verdict.shares.values()) == pytest.approx(1)
    assert list(result.verdict.runs) == [f"{run.variant} at {run.condition}" for run in result.runs]


def test_sampled_steps_time_the_layer_as_a_whole_too(experiment):
    result, _ = measure(experiment(conditions=[{"concurrency": 1, "prompt_tokens": 3}]))
    steps = result.runs[0].steps.index
    assert result.runs[0].clock.sampled_steps == len([i for i in steps if i % 8 == 0])
    assert result.runs[0].clock.sum_over_whole > 0


def test_a_wrong_result_is_reported_and_not_timed(experiment, monkeypatch):
    combine = permute.Packed.combine
    monkeypatch.setattr(permute.Packed, "combine", lambda packed, outputs: combine(packed, outputs) * 1.5)
    result, _ = measure(experiment())
    run = result.runs[0]
    assert run.status == "wrong result"
    assert run.check.rel_error == pytest.approx(0.5, abs=0.05)
    assert run.summary is None


def test_it_is_refused_before_anything_is_allocated(experiment, monkeypatch):
    monkeypatch.setattr(environment, "available_bytes", lambda device: 10_000_000)
    monkeypatch.setattr(bench, "Network", None)  # would fail if it were made
    with pytest.raises(DoesNotFit, match=r"measuring .*tiny\.json needs 0\.6 GB and the device has 0\.0 GB free"):
        measure(experiment())


def test_networks_side_by_side_count_together(experiment):
    conditions = [
        runner.plan_condition(
            experiment({"field": "kernels.dtype", "values": ["float32", "bfloat16"]}).runs(), {}, False
        )
    ]
    single = [conditions[0].fit(run.spec, None).total_bytes for run in conditions[0].planned]
    both = sum(single) - capacity.PROCESS_BYTES - capacity.PROBE_BYTES
    runner.refuse_what_does_not_fit(conditions, both)
    with pytest.raises(DoesNotFit):
        runner.refuse_what_does_not_fit(conditions, both - 1)


@pytest.fixture
def ticking(monkeypatch):
    """A monotonic clock that moves on by 10 ms whenever someone reads it."""
    reads = count()
    clock = SimpleNamespace(monotonic=lambda: next(reads) / 100)
    for module in (runner, bench):
        monkeypatch.setattr(module, "time", clock)


def test_what_max_seconds_cuts_is_marked_truncated(experiment, ticking):
    result, _ = measure(experiment(workload={"requests": 200}, measure={"max_seconds": 1.0, "warmup_steps": 0}))
    run = result.runs[0]
    assert run.summary.truncated
    assert 90 < len(run.steps.index) < 100
    assert "max_seconds cut this run off" in run.notes[0]


def test_a_condition_can_not_use_up_the_time_of_the_next(experiment, ticking):
    conditions = [
        {"concurrency": 1, "requests": 200, "prompt_tokens": 3},
        {"concurrency": 2, "requests": 2, "prompt_tokens": 4},
    ]
    result, _ = measure(experiment(conditions=conditions, measure={"max_seconds": 2.0, "warmup_steps": 0}))
    assert [run.summary.truncated for run in result.runs] == [True, False]


def test_it_stops_between_steps_when_asked(experiment):
    asked = iter([False] * 12 + [True] * 1000)
    with pytest.raises(Canceled):
        measure(experiment(), stop=lambda: next(asked))


def test_repeats_measure_the_schedule_again(experiment):
    once, _ = measure(experiment())
    twice, report = measure(experiment(measure={"repeats": 2}))
    assert twice.runs[0].steps.index == once.runs[0].steps.index * 2
    done = [(d, t) for phase, d, t, *_ in report.phases if phase == "measure"]
    assert done[-1][0] == done[-1][1] == 2 * len(once.runs[0].steps.index)


def test_threads_are_set_for_the_variant_that_asks(experiment, monkeypatch):
    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: used[-1] if used else 2)
    measure(experiment({"field": "kernels.threads", "values": [1, 2]}))
    assert used[:4] == [1, 2, 1, 2] or used[:3] == [1, 2, 1]


def test_a_missing_trace_names_its_field(experiment):
    with pytest.raises(SpecError) as caught:
        measure(experiment(workload={"trace": "nowhere.csv"}))
    assert caught.value.field == "base.workload.trace"
    assert "there is no such file" in caught.value.message


def test_a_schedule_that_is_too_long_names_its_field(experiment, monkeypatch):
    def too_long(*args, **kwargs):
        raise ValueError("the schedule has more than 5 entries")

    monkeypatch.setattr(planning, "closed_loop", too_long)
    with pytest.raises(SpecError, match=r"base\.workload\.requests: the schedule has more than 5 entries"):
        measure(experiment())


def test_an_open_loop_runs_each_variant_by_its_own_clock(experiment):
    """Requests come 40 virtual seconds apart, so the engine waits for each; latencies don't count the waiting."""
    workload = {"arrivals": "trace", "speedup": 1e-3, "requests": 3}
    vary = {"field": "routing.top_k", "values": [1, 2]}
    result, report = measure(experiment(vary, workload=workload, measure={"repeats": 2}))
    for run in result.runs:
        assert run.summary.rounds == 2
        assert any("whole rounds (2 of each)" in note for note in run.notes)
        steps, requests = run.steps, run.requests
        assert len(requests.ttft_ms) == 2 * 3
        first, second = steps.start_us[: len(steps.start_us) // 2], steps.start_us[len(steps.start_us) // 2 :]
        assert first[0] == second[0] == 0.0
        for starts in (first, second):
            assert all(a < b for a, b in pairwise(starts))
        took = np.array(steps.step_us[: len(first)])
        idle_us = np.diff(first) - took[:-1]
        assert (idle_us > -0.01).all()
        assert requests.arrival_ms[:3] == requests.arrival_ms[3:]
        assert max(requests.e2e_ms) < sum(steps.step_us) / 1000
    done = [(d, t) for phase, d, t, *_ in report.phases if phase == "measure"]
    assert done[-1] == (2 * 2 * 3, 2 * 2 * 3)


def test_an_open_loop_that_can_not_keep_up_counts_from_the_intended_arrival(experiment):
    """All come within a microsecond, two at a time are served: the later wait for the earlier."""
    workload = {"arrivals": "poisson", "rate": 1_000_000.0, "requests": 6}
    result, _ = measure(experiment(workload=workload))
    requests = result.runs[0].requests
    assert max(requests.arrival_ms) < 0.1
    assert requests.ttft_ms[4] > requests.e2e_ms[0] > 0


def test_an_open_loop_that_is_cut_is_truncated_and_leaves_time_for_the_next_variant(experiment, ticking):
    vary = {"field": "routing.top_k", "values": [1, 2]}
    workload = {"arrivals": "poisson", "rate": 1.0, "requests": 100}
    result, report = measure(
        experiment(vary, workload=workload, measure={"max_seconds": 1.0, "warmup_steps": 0}),
    )
    assert [run.summary.truncated for run in result.runs] == [True, True]
    counts = [len(run.steps.index) for run in result.runs]
    assert counts[0] == pytest.approx(counts[1], abs=4)
    assert report.phases[-1][0] == "measure"


def test_a_kv_cache_that_runs_out_preempts_and_says_how_often(experiment):
    workload = {"kv_tokens": 14, "limits": {"ttft_ms": 1e-6}}
    result, _ = measure(experiment(workload=workload))
    summary, notes = result.runs[0].summary, result.runs[0].notes
    assert summary.preemptions > 0
    assert f"The KV cache held 14 tokens: preempted {summary.preemptions} times" in " ".join(notes)
    assert summary.goodput_per_s == 0.0
    assert any(note.startswith("Goodput is 0: no request met all limits.") for note in notes)
    assert len(result.runs[0].requests.ttft_ms) == 5


def test_prefixes_of_a_mooncake_trace_are_reused_when_asked(experiment, tmp_path):
    trace = tmp_path / "mine.jsonl"
    row = '{{"timestamp": {0}, "input_length": 520, "output_length": 2, "hash_ids": [1, {0}]}}\n'
    trace.write_text("".join(map(row.format, range(2, 5))))
    workload = {"trace": str(trace), "requests": 3, "max_batch_tokens": 1024, "output_tokens": 2}
    workload["prefix_reuse"] = True
    result, _ = measure(experiment(workload=workload, conditions=[{"concurrency": 1}]))
    assert result.runs[0].summary.prefix_hit_rate == pytest.approx(2 * 512 / (3 * 520))
    assert result.runs[0].steps.prefill_tokens == [520, 0, 8, 0, 8, 0]
    assert result.runs[0].requests.prompt_tokens == [520] * 3


def test_the_moe_layer_alone_can_be_measured(experiment):
    result, _ = measure(experiment(kernels={"attention": False, "dtype": "float32"}))
    run = result.runs[0]
    assert {stage.partition(".")[0] for stage in run.summary.stage_us} == {"route", "permute", "experts", "combine"}
    assert run.requests is None


def test_the_result_survives_its_file(experiment):
    result, _ = measure(experiment())
    again = Result.model_validate_json(result.model_dump_json(by_alias=True))
    assert again == result
    assert again.environment["versions"]["deepspeed"]


def test_all_strategies_run_on_the_same_batches_and_say_what_they_came_to(experiment):
    vary = {"field": "routing.strategy", "values": list(ROUTERS)}
    result, _ = measure(experiment(vary, kernels={"dtype": "float32"}, workload={"max_batch_tokens": 64}))
    runs = {run.variant: run for run in result.runs}
    assert {name: run.status for name, run in runs.items()} == dict.fromkeys(ROUTERS, "ok")
    tokens = [p + d for p, d in zip(*(getattr(runs["hash"].steps, f"{kind}_tokens") for kind in ("prefill", "decode")),
                                    strict=True)]  # fmt: skip
    for name in ("token_choice", "balanced", "hash", "group_limited"):  # two of eight experts, in two layers
        assert runs[name].steps.assignments == [2 * 2 * t for t in tokens]
        assert runs[name].routing.experts_per_token == [0, 0, 2 * sum(tokens)]
    for name in ("expert_choice", "soft"):
        assert runs[name].steps.assignments == [2 * 8 * max(1, round(t * 2 / 8)) for t in tokens]
        assert runs[name].summary.expert_imbalance == 1.0
    assert {name: run.routing.causal for name, run in runs.items() if not run.routing.causal} == {
        "expert_choice": False, "soft": False
    }  # fmt: skip
    assert runs["token_choice"].routing.expert_overlap == 1.0
    assert runs["soft"].routing.expert_overlap is None
    assert all(0 < runs[name].routing.expert_overlap < 1 for name in ("expert_choice", "balanced", "hash", "dynamic"))
    for run in result.runs:
        over_time = run.routing.expert_assignments_over_time
        assert [sum(column) for column in zip(*over_time, strict=True)] == [
            sum(column) for column in zip(*run.expert_assignments, strict=True)
        ]


def test_a_capacity_limit_is_counted_step_by_step(experiment):
    result, _ = measure(experiment(routing={"capacity_factor": 0.5}))
    run = result.runs[0]
    assert sum(run.steps.dropped) == run.routing.dropped > 0
    assert run.summary.drop_rate == pytest.approx(run.routing.dropped / (run.routing.dropped + run.routing.assignments))


def test_a_choice_that_is_not_the_best_balanced_one_is_a_wrong_result(experiment, monkeypatch):
    def everyone_to_the_first(scores, top_k):
        return torch.arange(top_k).expand(scores.shape[0], top_k).contiguous()

    monkeypatch.setitem(SOLVERS, "auction", everyone_to_the_first)
    result, _ = measure(experiment(routing={"strategy": "balanced"}))
    assert result.runs[0].status == "wrong result"
    assert result.runs[0].check.rel_error is None


@pytest.fixture
def recorded(tmp_path):
    """Tokens that all go to the experts 1 and 6, in one recorded layer."""
    path = tmp_path / "mine.npz"
    write_recording(path, from_ids(np.array([[[1, 6]], [[6, 1]]] * 20), num_experts=8))
    return path


def test_a_recorded_load_is_replayed_by_name_and_by_path(experiment, recorded):
    for name, files in (("mine", {"mine": recorded}), (str(recorded), {})):
        load = {"profile": "recorded", "recording": name}
        result, _ = measure(experiment(load=load), recording_files=files)
        run = result.runs[0]
        assert [e for e in range(8) if run.expert_assignments[0][e]] == [1, 6]
        assert f"The expert load is recorded: {name}, 1 layer of 8 experts, 40 tokens one by one." in run.notes


def test_a_recording_of_another_model_names_its_field(experiment, recorded, tmp_path):
    write_recording(tmp_path / "other.npz", from_ids(np.array([[[0, 3]], [[1, 2]]])))
    with pytest.raises(SpecError) as caught:
        measure(experiment(load={"profile": "recorded", "recording": str(tmp_path / "other.npz")}))
    assert str(caught.value) == "base.load.recording: other.npz: holds 4 experts; tiny has 8"


def test_stages_are_held_against_the_kept_ceilings(experiment):
    result, _ = measure(experiment())
    (kept,) = result.ceilings.values()
    assert kept.read.value == 50.0
    limits = result.runs[0].summary.limits
    assert {"route", "route.gate", "permute", "experts", "combine", "attention", "other.head"} <= set(limits)
    assert all(limit.share >= 0 for limit in limits.values())


def test_the_experts_of_several_ranks_are_too(experiment):
    parallel = {"mode": "virtual", "layout": {"tp": 1, "dp": 2}}
    (run,) = measure(experiment(parallel=parallel))[0].runs
    around = {"attention", "other", "other.embedding", "other.head"}
    assert set(run.summary.limits) == {"experts"} | around


def test_the_heads_of_a_group_are_too_and_its_transfers_are_not(experiment):
    parallel = {"mode": "virtual", "layout": {"tp": 2, "dp": 2}}
    (run,) = measure(experiment(parallel=parallel))[0].runs
    limits = run.summary.limits
    assert set(limits) == {"experts", "attention", "attention.heads", "other", "other.embedding", "other.head"}
    assert limits["attention"] == limits["attention.heads"]
    assert limits["attention"].floor_us > 0


def test_without_attention_the_experts_of_several_ranks_alone_are(experiment):
    parallel = {"mode": "virtual", "layout": {"tp": 1, "dp": 2}}
    (run,) = measure(experiment(parallel=parallel, kernels={"attention": False}))[0].runs
    assert set(run.summary.limits) == {"experts"}


@pytest.fixture
def probed(experiment, monkeypatch):
    """Ceilings of kernels that can be probed, on small inputs; the bus was calibrated far below what it gives."""
    (made_up,) = measure(experiment())[0].ceilings.values()
    for name, value in (("BUFFER_BYTES", 4096), ("PRODUCTS", ((4, 64, 16),))):
        monkeypatch.setattr(calibrate, name, value)
    monkeypatch.setattr(calibrate.host, "last_level_cache_bytes", lambda: 1024)
    slow = made_up.read.model_copy(update={"value": 1e-6, "kernel": "sum of int64"})
    matrix = made_up.matrix["bfloat16"].model_copy(update={"by_kernel": {"linear 4×64×16": 900.0}})
    found = made_up.model_copy(
        update={"read": slow, "copy_rate": slow, "matrix": made_up.matrix | {"bfloat16": matrix}}
    )
    monkeypatch.setattr(runner.ceilings, "load", lambda fingerprint, threads: found)
    kept = []
    monkeypatch.setattr(runner.ceilings, "keep", lambda fingerprint, ceilings: kept.append(ceilings))
    return kept


@pytest.mark.parametrize("workload", [{}, {"arrivals": "poisson", "rate": 1000.0}])
def test_the_machine_is_probed_before_and_after_every_pass(experiment, probed, workload):
    vary = {"field": "kernels.fusion", "values": ["none", "gate_up"]}
    result, _ = measure(experiment(vary, measure={"repeats": 2}, workload=workload))
    for run in result.runs:
        assert run.noise.around.probes >= 4
        assert run.noise.around.memory.ceiling == 1e-6
        assert run.noise.around.matrix.ceiling == 900.0


def test_a_bus_faster_than_calibrated_raises_what_stages_are_held_against_and_what_is_kept(experiment, probed):
    result, _ = measure(experiment())
    (found,) = result.ceilings.values()
    assert found.bus.value == result.runs[0].noise.around.memory.best > 1e-6
    assert probed == [found]
    assert result.runs[0].summary.limits["experts"].share <= 1.05


def test_ranks_that_only_count_are_not_probed(experiment, probed):
    parallel = {"mode": "virtual", "layout": {"tp": 1, "dp": 2}, "count_only": True}
    (run,) = measure(experiment(parallel=parallel, kernels={"attention": False}))[0].runs
    assert run.noise is None or run.noise.around is None
    assert probed == []


@pytest.mark.parametrize("busy", [None, "Other processes took 40% of the processors meanwhile."])
def test_ceilings_that_are_not_kept_or_doubtful_are_measured_first_for_each_number_of_threads(
    experiment, monkeypatch, busy
):
    (kept,) = measure(experiment())[0].ceilings.values()
    asked = []
    doubtful = kept.model_copy(update={"warnings": [busy]})
    monkeypatch.setattr(runner.ceilings, "load", lambda fingerprint, threads: busy and doubtful)
    monkeypatch.setattr(runner, "calibrate_apart", lambda threads: asked.append(threads) or kept)
    result, report = measure(experiment({"field": "kernels.threads", "values": [2, 1]}))
    assert asked == [1, 2]
    assert list(result.ceilings) == ["1", "2"]
    assert [phase for phase, *_ in report.phases[:3]] == ["calibrate", "calibrate", "prepare"]


@pytest.mark.parametrize("backend", ["loop", "padded", "deepspeed_layer"])
def test_every_backend_runs_whole_steps_and_counts_its_rows(experiment, backend):
    vary = {"field": "kernels.experts", "values": ["deepspeed", backend]}
    tight, run = measure(experiment(vary))[0].runs
    assert (run.status, tight.status) == ("ok", "ok")
    assert run.steps.assignments == tight.steps.assignments
    assert tight.steps.ranks[0].rows == tight.steps.assignments
    assert tight.summary.padding_waste == 0
    assert run.expert_assignments == tight.expert_assignments
    if backend == "loop":
        assert run.steps.ranks[0].rows == run.steps.assignments
    else:
        assert all(rows % 8 == 0 for rows in run.steps.ranks[0].rows)  # equally many for each of 8 experts
        assert 0 < run.summary.padding_waste < 1


@pytest.mark.skipif(bool(zentorch.missing(torch.device("cpu"))), reason="zentorch can't run here")
def test_a_backend_that_packs_weights_shares_them_with_the_others(experiment):
    vary = {"field": "kernels.experts", "values": ["zentorch", "deepspeed", "auto"]}
    result, _ = measure(experiment(vary))
    assert [run.status for run in result.runs] == ["ok"] * 3
    assert ["packed" in run.fit["measurement"].parts for run in result.runs] == [True, False, False]


def test_auto_says_what_it_chose_and_why(experiment, monkeypatch):
    monkeypatch.setattr(zentorch, "missing", lambda device: "it is away")
    result, report = measure(experiment(kernels={"experts": "auto"}))
    run = result.runs[0]
    assert {choice.tokens for choice in run.choices} == {1, 8}  # steps of 1 to 8 tokens
    for choice in run.choices:
        assert set(choice.layer_us) == {"deepspeed", "padded", "loop"}
        assert choice.layer_us[choice.backend] == min(choice.layer_us.values())
    assert "it is away" in run.refused["zentorch"]
    assert run.notes[-1].startswith("auto measured and chose ")
    assert "tune" in [phase for phase, *_ in report.phases]


def test_a_backend_that_can_not_run_here_is_refused_by_name(experiment, monkeypatch):
    monkeypatch.setattr(zentorch, "missing", lambda device: "it is away")
    with pytest.raises(Unavailable, match=r"^kernels\.experts: 'zentorch' can't run: it is away$"):
        measure(experiment({"field": "kernels.experts", "values": ["deepspeed", "zentorch"]}))


def test_a_run_tells_its_rows_per_expert_and_its_noise(experiment):
    result, _ = measure(experiment(workload={"requests": 30}, measure={"repeats": 3}))
    run = result.runs[0]
    steps, experts = len(run.steps.index), 2 * 8
    assert sum(run.routing.rows_per_expert) == steps * experts
    assert run.noise.label in ("steady", "noisy", "drifting", "bimodal")
    assert run.noise.samples > 20


def test_what_else_ran_on_the_machine_is_flagged(experiment, monkeypatch):
    monkeypatch.setattr(runner.machine_state, "flags", lambda before, after, processors: ["Others were busy."])
    monkeypatch.setattr(runner.machine_state, "governor_flag", lambda governor: "The clock is governed.")
    monkeypatch.setattr(runner.machine_state, "threads_flag", lambda environ, cores: None)
    result, _ = measure(experiment())
    assert result.environment["flags"] == ["Others were busy.", "The clock is governed."]


@pytest.mark.parametrize(
    ("threads", "flags"), [([1], []), ([None], ["Threads are few."]), ([1, None], ["Threads are few."])]
)
def test_threads_that_the_environment_limits_are_flagged_where_a_variant_does_not_set_its_own(
    experiment, monkeypatch, threads, flags
):
    monkeypatch.setattr(runner.machine_state, "flags", lambda before, after, processors: [])
    monkeypatch.setattr(runner.machine_state, "governor_flag", lambda governor: None)
    monkeypatch.setattr(runner.machine_state, "threads_flag", lambda environ, cores: "Threads are few.")
    vary = {"field": "kernels.threads", "values": threads}
    result, _ = measure(experiment(vary if len(threads) > 1 else None, kernels={"threads": threads[0]}))
    assert result.environment["flags"] == flags


def test_variants_on_several_ranks_run_beside_each_other_and_say_what_their_ranks_did(experiment):
    base = {"kernels": {"attention": False}, "parallel": {"mode": "virtual", "layout": {"tp": 1, "dp": 4, "nodes": 2}}}
    vary = {"field": "parallel.placement", "values": ["contiguous", "eplb"]}
    result, _ = measure(experiment(vary, workload={"requests": 6}, **base))
    first = result.runs[0].steps
    tokens = [p + d for p, d in zip(first.prefill_tokens, first.decode_tokens, strict=True)]
    for run in result.runs:
        assert run.status == "ok"
        assert [rank.rank for rank in run.steps.ranks] == [0, 1, 2, 3]
        assert np.sum([rank.assignments for rank in run.steps.ranks], axis=0).tolist() == [2 * 2 * t for t in tokens]
        for rank in run.steps.ranks:
            stages = np.sum([us for stage, us in rank.stages_us.items() if "." not in stage], axis=0)
            assert stages + rank.idle_us == pytest.approx(run.steps.layer_us, abs=0.01)
        sent = np.array(run.exchange.dispatched_bytes)
        assert sent.sum() == sum(run.steps.assignments) * 64 * 2  # bfloat16 rows of 64
        assert np.sum([np.sum(list(rank.bytes.values())) for rank in run.steps.ranks]) == 2 * sent.sum()
        assert run.exchange.nodes == [0, 0, 1, 1]
        assert run.notes[0].startswith("Measured compute, modelled network")
        assert run.origins["dispatch"] == run.origins["layer_us"] == "assumed"  # InfiniBand is from a datasheet
        assert sum(run.summary.stage_share.values()) == pytest.approx(1)
        assert 0 < run.summary.idle_share < 1
    contiguous, eplb = result.runs
    assert (contiguous.exchange.fitted_to, eplb.exchange.fitted_to) == ("nothing", "first pass")
    assert eplb.summary.imbalance <= contiguous.summary.imbalance


def test_a_layout_that_no_machine_could_hold_is_counted(experiment):
    parallel = {"mode": "virtual", "layout": {"tp": 1, "dp": 256, "nodes": 32}, "count_only": True}
    result, _ = measure(experiment(
        model="deepseek-v3", layers=2, kernels={"attention": False}, parallel=parallel,
        workload={"requests": 8, "max_batch_tokens": 64}, conditions=[{"concurrency": 8, "prompt_tokens": 6}],
    ))  # fmt: skip
    (run,) = result.runs
    assert len(run.steps.ranks) == 256
    assert run.exchange.count_only
    assert set(run.summary.stage_us) == {"dispatch", "combine", "combine.transfer", "idle"}
    assert "Only counted" in run.notes[0]


def test_requests_on_several_ranks_have_latencies_where_attention_is_measured(experiment):
    parallel = {"mode": "virtual", "layout": {"tp": 1, "dp": 2, "nodes": 1}}
    result, _ = measure(experiment(workload={"requests": 6}, parallel=parallel))
    (run,) = result.runs
    assert len(run.requests.ttft_ms) == 6
    assert run.origins["requests"] == run.exchange.network == "modelled"
    for rank in run.steps.ranks:
        assert {"attention", "other.embedding", "other.head"} <= set(rank.stages_us)
    span = [
        np.array(rank.stages_us["other"])
        + 2 * (np.sum([us for stage, us in rank.stages_us.items() if "." not in stage and stage != "other"], axis=0)
               + rank.idle_us)
        for rank in run.steps.ranks
    ]  # fmt: skip
    assert span[0] == pytest.approx(span[1], abs=0.05)


def test_an_open_loop_is_served_on_several_ranks(experiment):
    parallel = {"mode": "virtual", "layout": {"tp": 1, "dp": 2, "nodes": 1}}
    result, _ = measure(experiment(workload={"requests": 4, "arrivals": "poisson", "rate": 50.0}, parallel=parallel))
    assert len(result.runs[0].requests.e2e_ms) == 4
    assert result.runs[0].steps.start_us is not None


def test_quantized_experts_are_checked_and_measured_beside_the_others(experiment, wide_config, monkeypatch):
    made = []
    network = bench.Network
    monkeypatch.setattr(bench, "Network", lambda *args: (made.append(args[1]), network(*args))[1])
    vary = {"field": "kernels.quantization", "values": ["none", "int8", "int4"]}
    base = {"model": str(wide_config), "kernels": {"experts": "auto", "dtype": "bfloat16"}}
    runs = measure(experiment(vary, **base))[0].runs
    assert len(made) == 1
    assert [run.status for run in runs] == ["ok"] * 3
    plain, int8, int4 = runs
    assert plain.check.quantization_error is None
    assert 0 < int8.check.quantization_error < 0.05 < int4.check.quantization_error < 0.5
    assert len({tuple(run.steps.assignments) for run in runs}) == 1
    stored = [run.fit["measurement"].parts["experts"] for run in runs]
    assert stored == sorted(stored, reverse=True)
    assert {choice.backend for choice in int4.choices} == {"loop"}


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_ceilings_of_before_int8_was_measured_are_measured_again_for_experts_in_int8(
    experiment, wide_config, monkeypatch, quantization
):
    (kept,) = measure(experiment())[0].ceilings.values()
    before = kept.model_copy(update={"matrix": {name: kept.matrix[name] for name in ("float32", "bfloat16")}})
    asked = []
    monkeypatch.setattr(runner.ceilings, "load", lambda fingerprint, threads: before)
    monkeypatch.setattr(runner, "calibrate_apart", lambda threads: asked.append(threads) or kept)
    kernels = {"experts": "loop", "dtype": "bfloat16", "quantization": quantization}
    result, _ = measure(experiment(model=str(wide_config), kernels=kernels))
    assert len(asked) == (quantization == "int8")
    assert result.runs[0].summary.limits["experts"].share > 0
