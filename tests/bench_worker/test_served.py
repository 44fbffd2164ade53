"""What clients saw, by hand: passes of schedules whose steps take 1 ms, unless said otherwise."""

import numpy as np
import pytest

from bench_worker.served import NOTHING, Pass, figures, goodput_notes, serve, workload_notes
from bench_worker.spec import Spec
from bench_worker.workload import Request
from bench_worker.workload.schedule import closed_loop


def spec(**workload):
    return Spec.model_validate({"model": "olmoe-1b-7b", "workload": workload})


def requests_of(*lengths):
    return [Request(0.0, prompt, output) for prompt, output in lengths]


#: Prefill of both; then 0 and 1 decode, 0 ends; then 1 alone, twice.
TWO = closed_loop(requests_of((2, 2), (2, 4)), 2, 8)
PREEMPTED = closed_loop(requests_of((4, 5), (4, 4)), 2, 16, kv_tokens=10)


def seen(batches, passes=1):
    return serve([Pass(batches)] * passes, np.full(passes * len(batches), 1000.0))


def test_rates_count_over_the_time_of_all_passes():
    """Two passes of 4 ms: 4 requests and 12 tokens in 8 ms."""
    found = figures(spec(), [Pass(TWO)] * 2, seen(TWO, passes=2))
    assert found["requests_per_s"] == pytest.approx(4 / 0.008)
    assert found["output_tokens_per_s"] == pytest.approx(12 / 0.008)
    assert found["ttft_ms"].samples == 4
    assert found["goodput_per_s"] is None
    assert (found["preemptions"], found["recomputed_tokens"], found["prefix_hit_rate"]) == (0, 0, None)


def test_waiting_for_requests_counts_as_time():
    passed = [Pass(TWO, [0.0, 1000.0, 5000.0, 6000.0], np.zeros(2))]
    found = figures(spec(arrivals="trace"), passed, serve(passed, np.full(4, 1000.0)))
    assert found["requests_per_s"] == pytest.approx(2 / 0.007)
    assert found["rounds"] == 1


def test_goodput_counts_the_requests_that_meet_all_limits():
    """End to end, request 0 takes 2 ms and 1 takes 4."""
    for limits, good in (({"e2e_ms": 2.0}, 1), ({"e2e_ms": 4.0}, 2), ({"e2e_ms": 4.0, "ttft_ms": 0.5}, 0)):
        found = figures(spec(limits=limits), [Pass(TWO)], seen(TWO))
        assert found["goodput_per_s"] == pytest.approx(good / 0.004)


def test_limits_that_no_request_meets_are_said_plainly():
    assert goodput_notes(spec(limits={"ttft_ms": 0.5, "e2e_ms": 1000.5}), seen(TWO)) == [
        "Goodput is 0: no request met all limits. Each by itself, the best were TTFT 1.0 against 0.5 ms, "
        "E2E 2.0 against 1,000.5 ms."
    ]
    assert goodput_notes(spec(limits={"ttft_ms": 1.0}), seen(TWO)) == []
    assert goodput_notes(spec(), seen(TWO)) == goodput_notes(spec(limits={"ttft_ms": 1.0}), NOTHING) == []


def test_preemptions_and_what_they_cost_are_counted_and_told():
    found = figures(spec(kv_tokens=10), [Pass(PREEMPTED)], seen(PREEMPTED))
    assert (found["preemptions"], found["recomputed_tokens"]) == (1, 5)
    assert workload_notes(spec(kv_tokens=10), [Pass(PREEMPTED)]) == [
        "The KV cache held 10 tokens: preempted 1 times, 5 tokens computed again."
    ]


def test_reused_prefixes_are_told_with_their_share():
    """Of 600 and 1,100 prompt tokens, 512 of the second are found: 512 / 1,700."""
    batches = closed_loop(requests_of((600, 1), (1100, 1)), 1, 2048, prefixes=[[1, 2], [1, 3, 4]])
    work = spec(trace="mine", prefix_reuse=True)
    assert figures(work, [Pass(batches)], seen(batches))["prefix_hit_rate"] == pytest.approx(512 / 1700)
    [note] = workload_notes(work, [Pass(batches)])
    assert note.startswith("Prefixes were reused: 30.1% of the prompts' tokens were found in the KV cache.")


def test_an_open_loop_says_how_its_variants_alternated():
    [note] = workload_notes(spec(arrivals="poisson", rate=1.0), [Pass(TWO)] * 3)
    assert note.startswith("Open loop: ")
    assert "variants alternated in whole rounds (3 of each)" in note


def test_each_latency_names_the_steps_behind_its_p95():
    found = figures(spec(), [Pass(PREEMPTED)], seen(PREEMPTED))["tails"]
    assert set(found) == {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"}
    assert (found["tpot_ms"].request, found["tpot_ms"].steps) == (1, [2, 3, 4, 5])
    assert found["tpot_ms"].reason.startswith("preempted")


def test_without_latencies_only_counts_are_left():
    found = figures(spec(), [Pass(TWO)], NOTHING)
    assert found["ttft_ms"] is found["output_tokens_per_s"] is found["goodput_per_s"] is None
    assert found["tails"] == {}


def test_without_steps_there_is_nothing_to_say():
    assert workload_notes(spec(arrivals="trace", kv_tokens=10), [Pass([])]) == []
