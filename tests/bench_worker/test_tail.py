"""The steps behind a percentile, on schedules small enough to follow by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.serving import Timeline, request_metrics
from bench_worker.tail import tail
from bench_worker.workload import Request
from bench_worker.workload.schedule import Limits, OpenLoop, closed_loop


def requests_of(*lengths):
    return [Request(0.0, prompt, output) for prompt, output in lengths]


def timeline(batches, per_token_us=1000.0):
    """Steps that take ``per_token_us`` for each token."""
    return Timeline(batches, [per_token_us * batch.tokens for batch in batches])


def test_a_prefill_in_the_way_of_decodes_is_named_with_its_steps():
    """Two slots, four tokens a step. Request 0 decodes; 1 ends at once, and 2 brings nine prompt tokens, which stand
    beside three of the decodes in chunks of three."""
    batches = closed_loop(requests_of((2, 8), (2, 1), (9, 1)), 2, 4)
    assert [[tuple(entry) for entry in batch.entries] for batch in batches[:5]] == [
        [(0, 2, 0, 0), (1, 2, 0, 0)],
        [(0, 0, 1, 2), (2, 3, 0, 0)],
        [(0, 0, 1, 3), (2, 3, 0, 3)],
        [(0, 0, 1, 4), (2, 3, 0, 6)],
        [(0, 0, 1, 5)],
    ]
    for metric, value_ms in (("tpot_ms", 16 / 7), ("itl_ms", 4.0)):
        found = tail(metric, [timeline(batches)])
        assert (found.request, found.steps, found.reason) == (0, [1, 2, 3], "prefill of request 2 in the way")
        assert found.value_ms == pytest.approx(value_ms)


def test_a_long_prompt_is_its_own_reason():
    found = tail("ttft_ms", [timeline(closed_loop(requests_of((10, 2)), 1, 4))])
    assert (found.steps, found.reason) == ([0, 1, 2], "its own prompt of 10 tokens, in 3 chunks")
    found = tail("ttft_ms", [timeline(closed_loop(requests_of((4, 1)), 1, 4))])
    assert (found.steps, found.reason) == ([0], "its own prompt of 4 tokens")


def test_a_prompt_that_waits_behind_others_names_them():
    """All four arrive at once, and prompts are computed in order: the last waits for the eight tokens before it."""
    found = tail("ttft_ms", [timeline(closed_loop(requests_of((4, 1), (4, 1), (4, 1), (2, 1)), 4, 4))])
    assert (found.request, found.steps) == (3, [0, 1, 2])
    assert found.reason == "waiting behind the prefill of requests 0, 1, 2"


def test_more_requests_than_a_sentence_holds_are_counted():
    found = tail("ttft_ms", [timeline(closed_loop(requests_of(*[(6, 1)] * 6), 6, 6))])
    assert found.reason == "waiting behind the prefill of requests 0, 1, 2 and 2 more"


def test_a_preempted_request_says_so():
    """Request 1 loses its cache in step 2 and comes back in step 5, when 0 has ended."""
    batches = closed_loop(requests_of((4, 5), (4, 4)), 2, 16, kv_tokens=10)
    for metric in ("tpot_ms", "e2e_ms", "itl_ms"):
        found = tail(metric, [timeline(batches)])
        assert (found.request, found.steps) == (1, [2, 3, 4, 5])
        assert found.reason == "preempted: the KV cache was full, and its own was computed again"


def test_slow_steps_without_a_prefill_are_decodes():
    batches = closed_loop(requests_of((1, 5), (1, 5)), 2, 8)
    found = tail("itl_ms", [Timeline(batches, [1000, 1000, 1000, 9000, 1000])])
    assert (found.steps, found.reason) == ([3], "decoding 2 requests at once, with no prefill in the way")
    found = tail("tpot_ms", [Timeline(closed_loop(requests_of((1, 4)), 1, 8), [1000, 1000, 1000, 9000])])
    assert (found.steps, found.reason) == ([1, 2, 3], "decoding one request at a time, with no prefill in the way")


def test_a_long_answer_takes_its_own_time_end_to_end():
    found = tail("e2e_ms", [timeline(closed_loop(requests_of((2, 6)), 1, 8))])
    assert (found.steps, found.reason) == ([1, 2, 3, 4, 5], "its own 6 output tokens, one a step")


@pytest.mark.parametrize(
    ("prefill_us", "reason"),
    [(3000, "waiting behind the prefill of request 0"), (1000, "waiting while one request at a time decoded")],
)
def test_what_took_most_of_the_waiting_is_its_reason(prefill_us, reason):
    """One slot: request 1 waits for 0's prefill and two decodes of 1 ms each."""
    loop, batches, starts, now = OpenLoop(requests_of((2, 3), (2, 1)), [0, 1], Limits(1, 8)), [], [], 0.0
    took = [prefill_us, 1000, 1000, 500]
    while (step := loop.next(now)) is not None:
        batches.append(step.batch)
        starts.append(step.start_us)
        now = step.start_us + took[len(starts) - 1]
    found = tail("ttft_ms", [Timeline(batches, took, starts, [0, 1])])
    assert (found.request, found.steps, found.reason) == (1, [0, 1, 2], reason)


def test_an_open_loop_waits_from_the_intended_arrival_on():
    """One slot. Request 0 decodes until 50 ms. Request 1 came at 12 ms, in the second step."""
    loop, batches, starts, now = OpenLoop(requests_of((2, 5), (2, 1)), [0, 12_000], Limits(1, 8)), [], [], 0.0
    while (step := loop.next(now)) is not None:
        batches.append(step.batch)
        starts.append(step.start_us)
        now = step.start_us + 10_000
    found = tail("ttft_ms", [Timeline(batches, [10_000] * len(batches), starts, [0, 12_000])])
    assert (found.request, found.steps, found.value_ms) == (1, [1, 2, 3, 4], 48.0)
    assert found.reason == "waiting while one request at a time decoded"


def test_steps_count_through_all_passes():
    slow, fast = (timeline(closed_loop(requests_of((10, 2)), 1, 4), us) for us in (2000.0, 1000.0))
    assert tail("ttft_ms", [fast, slow]).steps == [4, 5, 6]
    assert tail("ttft_ms", [slow, fast]).steps == [0, 1, 2]


def test_without_values_there_is_no_tail():
    assert tail("ttft_ms", []) is None
    assert tail("tpot_ms", [timeline(closed_loop(requests_of((4, 1)), 1, 4))]) is None


@given(st.data())
def test_every_tail_lies_within_the_life_of_its_request(data):
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=8))
    kv_tokens = data.draw(st.one_of(st.none(), st.integers(30, 60)))
    batches = closed_loop(requests_of(*lengths), data.draw(st.integers(1, 4)), data.draw(st.integers(4, 24)),
                          kv_tokens=kv_tokens)  # fmt: skip
    times = data.draw(st.lists(st.integers(1, 9), min_size=len(batches), max_size=len(batches)))
    one = Timeline(batches, times)
    by_request = {m.request: m for m in request_metrics(*one)}
    start = np.cumsum([0, *times])
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        found = tail(metric, [one])
        values = [v for m in by_request.values() if (v := getattr(m, metric)) is not None]
        if found is None:
            assert not values
            continue
        m = by_request[found.request]
        assert found.value_ms == getattr(m, metric)
        assert found.value_ms >= np.percentile(values, 95) or found.value_ms == max(values)
        assert found.steps == sorted(set(found.steps))
        assert found.reason
        for step in found.steps:
            assert m.arrival_ms * 1000 - 1e-6 <= start[step]
            assert start[step + 1] <= (m.arrival_ms + m.e2e_ms) * 1000 + 1e-6
