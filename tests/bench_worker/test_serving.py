from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.serving import (
    LatencyLimits,
    RequestMetrics,
    Timeline,
    output_tokens_per_s,
    request_metrics,
    span_s,
)
from bench_worker.workload.requests import Request
from bench_worker.workload.schedule import Limits, OpenLoop, closed_loop


def requests_of(*lengths):
    return [Request(0.0, prompt, output) for prompt, output in lengths]


# Two slots. Steps: prefill 0 and 1 | decode 0, 1 (0 ends) | decode 1, prefill 2 | decode 1, 2 (both end)
THREE = closed_loop(requests_of((2, 2), (2, 4), (3, 2)), concurrency=2, max_batch_tokens=8)
STEP_US = [5000, 1000, 3000, 2000]


def test_latencies_of_overlapping_requests_are_as_by_hand():
    """Steps end at 5, 6, 9 and 11 ms. Request 2 takes request 0's slot at 6 ms."""
    assert request_metrics(THREE, STEP_US) == [
        RequestMetrics(0, 0.0, 5.0, 1.0, [1.0], 6.0, 2, 2),
        RequestMetrics(1, 0.0, 5.0, 2.0, [1.0, 3.0, 2.0], 11.0, 2, 4),
        RequestMetrics(2, 6.0, 3.0, 2.0, [2.0], 5.0, 3, 2),
    ]


def test_start_times_with_gaps_count_into_the_latencies():
    """Steps run 10 to 15, 20 to 21, 30 to 33 and 34 to 36 ms. Request 2 arrives with the third."""
    assert request_metrics(THREE, STEP_US, start_us=[10_000, 20_000, 30_000, 34_000]) == [
        RequestMetrics(0, 10.0, 5.0, 6.0, [6.0], 11.0, 2, 2),
        RequestMetrics(1, 10.0, 5.0, 7.0, [6.0, 12.0, 3.0], 26.0, 2, 4),
        RequestMetrics(2, 30.0, 3.0, 3.0, [3.0], 6.0, 3, 2),
    ]


def test_the_first_token_comes_with_the_last_chunk_of_the_prompt():
    batches = closed_loop(requests_of((10, 2)), concurrency=1, max_batch_tokens=4)
    assert request_metrics(batches, [1000, 2000, 4000, 8000]) == [RequestMetrics(0, 0.0, 7.0, 8.0, [8.0], 15.0, 10, 2)]


def test_one_output_token_has_no_time_per_output_token():
    batches = closed_loop(requests_of((3, 1), (2, 1)), concurrency=1, max_batch_tokens=8)
    assert request_metrics(batches, [1000, 500]) == [
        RequestMetrics(0, 0.0, 1.0, None, [], 1.0, 3, 1),
        RequestMetrics(1, 1.0, 0.5, None, [], 0.5, 2, 1),
    ]


def test_a_truncated_run_leaves_out_the_requests_it_cut_off():
    assert [m.request for m in request_metrics(THREE[:2], STEP_US[:2])] == [0]
    assert request_metrics(THREE[:1], STEP_US[:1]) == []
    assert request_metrics([], []) == []


def test_requests_that_arrived_before_the_steps_given_are_left_out():
    assert request_metrics(THREE[2:], STEP_US[2:]) == [RequestMetrics(2, 0.0, 3.0, 2.0, [2.0], 5.0, 3, 2)]


def test_metrics_come_in_the_order_of_the_requests_not_of_their_ends():
    batches = closed_loop(requests_of((1, 9), (1, 2)), concurrency=2, max_batch_tokens=8)
    assert [m.request for m in request_metrics(batches, [1.0] * len(batches))] == [0, 1]


def test_throughput_counts_every_output_token_over_the_whole_span():
    """Eight tokens in 11 ms; in the first two steps 4 tokens in 6 ms; with gaps 8 tokens from 10 to 36 ms."""
    assert output_tokens_per_s(THREE, STEP_US) == pytest.approx(8 / 0.011)
    assert output_tokens_per_s(THREE[:2], STEP_US[:2]) == pytest.approx(4 / 0.006)
    assert output_tokens_per_s(THREE, STEP_US, [10_000, 20_000, 30_000, 34_000]) == pytest.approx(8 / 0.026)
    assert output_tokens_per_s([], []) == 0


def test_an_open_loop_behind_schedule_counts_from_the_intended_arrival():
    """One slot, steps of 10 ms. Request 0 holds it until 20 ms; 1 was meant to come at 2 ms and gets its only token at
    30, 28 ms later, although its step began at 20, after 18 ms of waiting; 2 comes at 45 ms, into an idle engine, and
    takes its 10."""
    arrival_us = [0, 2_000, 45_000]
    loop, batches, starts, now = OpenLoop(requests_of((2, 2), (2, 1), (2, 1)), arrival_us, Limits(1, 8)), [], [], 0.0
    while (step := loop.next(now)) is not None:
        batches.append(step.batch)
        starts.append(step.start_us)
        now = step.start_us + 10_000
    assert starts == [0, 10_000, 20_000, 45_000]
    timeline = Timeline(batches, [10_000] * 4, starts, arrival_us)
    assert request_metrics(*timeline) == [
        RequestMetrics(0, 0.0, 10.0, 10.0, [10.0], 20.0, 2, 2),
        RequestMetrics(1, 2.0, 28.0, None, [], 28.0, 2, 1, wait_ms=18.0),
        RequestMetrics(2, 45.0, 10.0, None, [], 10.0, 2, 1),
    ]
    assert span_s(timeline) == pytest.approx(0.055)


def test_requests_that_arrive_at_once_share_their_arrival():
    batches = closed_loop(requests_of((2, 1), (2, 1), (2, 1)), 3, 4)
    metrics = request_metrics(batches, [1000, 1000])
    assert [(m.arrival_ms, m.wait_ms, m.ttft_ms) for m in metrics] == [(0, 0, 1), (0, 0, 1), (0, 1, 2)]


def test_a_preempted_request_has_one_first_token_and_its_own_lengths():
    """Request 1 yields in steps 0 and 1, is preempted in 2, as that begins, and yields again in 5 and 6."""
    batches = closed_loop(requests_of((4, 5), (4, 4)), 2, 16, kv_tokens=10)
    assert request_metrics(batches, [1000] * 7)[1] == RequestMetrics(
        1, 0.0, 1.0, 2.0, [1.0, 4.0, 1.0], 7.0, 4, 4, preempted_ms=[2.0]
    )  # fmt: skip


def test_reused_tokens_belong_to_the_prompt():
    batches = closed_loop(requests_of((600, 1), (1100, 2)), 1, 2048, prefixes=[[1, 2], [1, 3, 4]])
    assert [m.prompt_tokens for m in request_metrics(batches, [1.0] * 3)] == [600, 1100]
    assert batches[1].prefill_tokens == 1100 - 512


def test_a_request_is_content_within_all_limits():
    one = RequestMetrics(0, 0.0, 200.0, 50.0, [50.0], 250.0, 1, 2)
    assert LatencyLimits().met_by(one)
    assert LatencyLimits(ttft_ms=200, tpot_ms=50, e2e_ms=250).met_by(one)
    for limits in ({"ttft_ms": 199.9}, {"tpot_ms": 49.9}, {"e2e_ms": 249.9}):
        assert not LatencyLimits(**limits).met_by(one)


def test_a_single_token_has_no_time_per_token_to_exceed():
    assert LatencyLimits(tpot_ms=0.001).met_by(RequestMetrics(0, 0.0, 5.0, None, [], 5.0, 1, 1))


@pytest.mark.parametrize("measure", [request_metrics, output_tokens_per_s])
def test_each_batch_needs_one_time(measure):
    with pytest.raises(ValueError, match=r"^there are 4 batches and 3 step times; it must be one each$"):
        measure(THREE, STEP_US[:3])
    with pytest.raises(ValueError, match=r"^there are 4 batches and 1 start times; it must be one each$"):
        measure(THREE, STEP_US, start_us=[0.0])


def slow_metrics(batches, step_us, start_us):
    """Walks through the steps with a stopwatch for each request."""
    arrived, began, prompts, tokens, lost, done = {}, {}, {}, {}, {}, set()
    for batch, took, start in zip(batches, step_us, start_us, strict=True):
        for index in batch.arrivals.tolist():
            arrived[index] = start
        for index in batch.preempted.tolist():
            lost.setdefault(index, []).append(start)
            if index not in tokens:
                prompts[index] = 0
        for entry, yields, ends in zip(batch.entries, batch.yields, batch.ends, strict=True):
            began.setdefault(entry.request, start)
            if entry.request not in tokens:
                prompts[entry.request] = prompts.get(entry.request, 0) + entry.prefill_tokens
            if yields:
                tokens.setdefault(entry.request, []).append(start + took)
            if ends:
                done.add(entry.request)
    result = []
    for index in sorted(done & set(arrived)):
        times = tokens[index]
        e2e, ttft = times[-1] - arrived[index], times[0] - arrived[index]
        tpot = (e2e - ttft) / (len(times) - 1) / 1000 if len(times) > 1 else None
        gaps = [(b - a) / 1000 for a, b in pairwise(times)]
        result.append(
            RequestMetrics(
                index,
                arrived[index] / 1000,
                ttft / 1000,
                tpot,
                gaps,
                e2e / 1000,
                prompts[index],
                len(times),
                (began[index] - arrived[index]) / 1000,
                [(at - arrived[index]) / 1000 for at in lost.get(index, [])],
            )
        )
    return result


@given(st.data())
def test_it_measures_what_the_slow_version_measures(data):
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 8)), min_size=1, max_size=10))
    most = data.draw(st.one_of(st.none(), st.integers(max(map(sum, lengths)), 80)))
    users, tokens = data.draw(st.integers(1, 4)), data.draw(st.integers(4, 40))
    batches = closed_loop(requests_of(*lengths), users, tokens, kv_tokens=most)
    begin = data.draw(st.integers(0, len(batches)))
    batches = batches[begin : data.draw(st.integers(begin, len(batches)))]
    times = st.lists(st.integers(1, 10**6), min_size=len(batches), max_size=len(batches))
    step_us, gap_us = data.draw(times), data.draw(st.one_of(st.none(), times))
    waits = gap_us or [0] * len(batches)
    start_us = [sum(step_us[:i]) + sum(waits[:i]) for i in range(len(batches))]
    fast = request_metrics(batches, step_us, None if gap_us is None else start_us)
    assert fast == slow_metrics(batches, step_us, start_us)


def test_lengths_are_those_of_the_requests():
    lengths = [(int(p), int(n)) for p, n in np.random.default_rng(0).integers(1, 60, (200, 2))]
    batches = closed_loop(requests_of(*lengths), concurrency=16, max_batch_tokens=64)
    metrics = request_metrics(batches, np.ones(len(batches)))
    assert [(m.prompt_tokens, m.output_tokens) for m in metrics] == lengths
    assert all(len(m.itl_ms) == m.output_tokens - 1 for m in metrics)
