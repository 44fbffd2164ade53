import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.workload import schedule as module
from bench_worker.workload.generators import generate
from bench_worker.workload.requests import Request, read_trace
from bench_worker.workload.schedule import Entry, Limits, OpenLoop, closed_loop

AZURE = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "requests" / "azure_llm_2023_conv.csv"


def requests_of(*lengths):
    return [Request(0.0, prompt, output) for prompt, output in lengths]


def steps(batches):
    """Each step as its entries, as plain tuples."""
    return [[tuple(entry) for entry in batch.entries] for batch in batches]


# By hand: entries are (request, prefill, decode, context)


def test_one_request_prefills_once_then_decodes_one_token_a_step():
    batches = closed_loop(requests_of((5, 4)), concurrency=1, max_batch_tokens=8)
    assert steps(batches) == [[(0, 5, 0, 0)], [(0, 0, 1, 5)], [(0, 0, 1, 6)], [(0, 0, 1, 7)]]
    assert [batch.yields.tolist() for batch in batches] == [[True]] * 4
    assert [batch.ends.tolist() for batch in batches] == [[False], [False], [False], [True]]
    assert [batch.arrivals.tolist() for batch in batches] == [[0], [], [], []]


def test_a_single_output_token_comes_from_the_prefill():
    batches = closed_loop(requests_of((3, 1), (2, 1)), concurrency=1, max_batch_tokens=8)
    assert steps(batches) == [[(0, 3, 0, 0)], [(1, 2, 0, 0)]]
    assert [batch.ends.tolist() for batch in batches] == [[True], [True]]
    assert [batch.arrivals.tolist() for batch in batches] == [[0], [1]]


def test_a_long_prompt_is_cut_and_only_its_last_chunk_yields_a_token():
    batches = closed_loop(requests_of((10, 2)), concurrency=1, max_batch_tokens=4)
    assert steps(batches) == [[(0, 4, 0, 0)], [(0, 4, 0, 4)], [(0, 2, 0, 8)], [(0, 0, 1, 10)]]
    assert [batch.yields.tolist() for batch in batches] == [[False], [False], [True], [True]]


def test_two_requests_overlap_and_decodes_go_before_prefill_chunks():
    """Six tokens a step. Request 0 takes 3 and request 1 the other 3 of its 9; then 0 decodes and leaves 5."""
    batches = closed_loop(requests_of((3, 4), (9, 2)), concurrency=2, max_batch_tokens=6)
    assert steps(batches) == [
        [(0, 3, 0, 0), (1, 3, 0, 0)],
        [(0, 0, 1, 3), (1, 5, 0, 3)],
        [(0, 0, 1, 4), (1, 1, 0, 8)],
        [(0, 0, 1, 5), (1, 0, 1, 9)],
    ]
    assert [batch.yields.tolist() for batch in batches] == [[True, False], [True, False], [True, True], [True, True]]
    assert [batch.ends.tolist() for batch in batches][-1] == [True, True]
    assert [batch.prefill_tokens for batch in batches] == [6, 5, 1, 0]
    assert [batch.decode_tokens for batch in batches] == [0, 1, 1, 2]
    assert [batch.tokens for batch in batches] == [6, 6, 2, 2]


def test_several_prompts_share_a_step_in_arrival_order():
    batches = closed_loop(requests_of((2, 1), (2, 1), (2, 1)), concurrency=3, max_batch_tokens=5)
    assert steps(batches) == [[(0, 2, 0, 0), (1, 2, 0, 0), (2, 1, 0, 0)], [(2, 1, 0, 1)]]


def test_a_freed_slot_is_taken_in_the_next_step():
    """Two slots, three requests: request 0 ends in step 1, so request 2 arrives in step 2 beside request 1."""
    batches = closed_loop(requests_of((2, 2), (2, 4), (3, 2)), concurrency=2, max_batch_tokens=8)
    assert steps(batches) == [
        [(0, 2, 0, 0), (1, 2, 0, 0)],
        [(0, 0, 1, 2), (1, 0, 1, 2)],
        [(1, 0, 1, 3), (2, 3, 0, 0)],
        [(1, 0, 1, 4), (2, 0, 1, 3)],
    ]
    assert [batch.arrivals.tolist() for batch in batches] == [[0, 1], [], [2], []]


def test_entries_are_named():
    entry = closed_loop(requests_of((5, 1)), 1, 8)[0].entries[0]
    assert entry == Entry(request=0, prefill_tokens=5, decode_tokens=0, context_tokens=0)


def test_no_requests_need_no_steps():
    assert closed_loop([], concurrency=4, max_batch_tokens=8) == []


# Refusals


@pytest.mark.parametrize("concurrency", [0, -3, 9])
def test_concurrency_must_lie_between_1_and_the_tokens_of_a_step(concurrency):
    with pytest.raises(
        ValueError, match=rf"^concurrency is {concurrency}; it must be from 1 to max_batch_tokens \(8\)$"
    ):
        closed_loop(requests_of((5, 4)), concurrency, max_batch_tokens=8)


@pytest.mark.parametrize("lengths", [(0, 4), (4, 0)])
def test_a_request_needs_a_prompt_and_an_output(lengths):
    with pytest.raises(ValueError, match=r"^request 1 has .* it must have at least 1 of each$"):
        closed_loop(requests_of((5, 4), lengths), concurrency=1, max_batch_tokens=8)


def test_a_schedule_of_too_many_entries_is_refused_before_it_is_written_out(monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 6)
    closed_loop(requests_of((8, 3), (8, 1)), 1, 4)  # 2 + 2 chunks and 2 decodes
    with pytest.raises(ValueError, match="over 6 entries"):
        closed_loop(requests_of((8, 3), (8, 2)), 1, 4)
    with pytest.raises(ValueError, match="over 6 entries"):
        closed_loop(requests_of((1, 9)), 1, 4)


def test_a_schedule_of_too_many_steps_is_refused_before_it_is_written_out(monkeypatch):
    monkeypatch.setattr(module, "MAX_STEPS", 5)
    closed_loop(requests_of((8, 4)), 1, 4)
    with pytest.raises(ValueError, match="has 6 steps, over 5"):
        closed_loop(requests_of((8, 5)), 1, 4)


# Against a simulator that does one thing at a time


def simulate(requests, concurrency, max_batch_tokens):
    """Every step token by token: (entries, requests that yield a token, requests that end, requests that arrive)."""
    waiting = list(range(len(requests)))
    in_flight = {}
    result = []
    while waiting or in_flight:
        arrivals = []
        while waiting and len(in_flight) < concurrency:
            index = waiting.pop(0)
            in_flight[index] = {
                "prompt": requests[index].prompt_tokens,
                "output": requests[index].output_tokens,
                "cached": 0,
            }
            arrivals.append(index)
        room = max_batch_tokens
        entries, yielding, ending = [], [], []
        decoding = [index for index, state in in_flight.items() if state["prompt"] == 0]
        prompting = [index for index, state in in_flight.items() if state["prompt"] > 0]
        for index in decoding:
            entries.append((index, 0, 1, in_flight[index]["cached"]))
            in_flight[index]["cached"] += 1
            room -= 1
            yielding.append(index)
        for index in prompting:
            state = in_flight[index]
            before, chunk = state["cached"], 0
            while room > 0 and state["prompt"] > 0:
                state["prompt"] -= 1
                state["cached"] += 1
                room -= 1
                chunk += 1
            if chunk:
                entries.append((index, chunk, 0, before))
                if state["prompt"] == 0:
                    yielding.append(index)
        for index in yielding:
            in_flight[index]["output"] -= 1
            if in_flight[index]["output"] == 0:
                del in_flight[index]
                ending.append(index)
        result.append((entries, yielding, ending, arrivals))
    return result


@st.composite
def cases(draw):
    lengths = draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), max_size=12))
    max_batch_tokens = draw(st.integers(1, 40))
    return requests_of(*lengths), draw(st.integers(1, min(6, max_batch_tokens))), max_batch_tokens


def flagged(batch, flags):
    return [entry.request for entry, flag in zip(batch.entries, flags.tolist(), strict=True) if flag]


@given(cases())
def test_it_does_what_the_slow_simulator_does(case):
    fast = [
        (steps([batch])[0], flagged(batch, batch.yields), flagged(batch, batch.ends), batch.arrivals.tolist())
        for batch in closed_loop(*case)
    ]
    assert fast == simulate(*case)


def test_it_does_what_the_slow_simulator_does_on_a_longer_trace():
    requests = [
        Request(0.0, r.prompt_tokens // 20 + 1, r.output_tokens // 20 + 1) for r in generate("conversation", 200, 5)
    ]
    random.Random(0).shuffle(requests)
    fast = steps(closed_loop(requests, 16, 100))
    assert fast == [entries for entries, *_ in simulate(requests, 16, 100)]


# Conservation


def check_conservation(requests, concurrency, max_batch_tokens):
    batches = closed_loop(requests, concurrency, max_batch_tokens)
    prefill, decode, ended, yielded = (np.zeros(len(requests), int) for _ in range(4))
    in_flight = set()
    for batch in batches:
        table = batch.table
        assert table.dtype == np.int64
        assert len(table) > 0
        assert batch.tokens <= max_batch_tokens
        in_flight |= set(batch.arrivals.tolist())
        assert len(in_flight) <= concurrency
        assert set(table[:, 0].tolist()) <= in_flight
        np.add.at(prefill, table[:, 0], table[:, 1])
        np.add.at(decode, table[:, 0], table[:, 2])
        yielded[table[batch.yields, 0]] += 1
        ended[table[batch.ends, 0]] += 1
        in_flight -= set(table[batch.ends, 0].tolist())
    assert not in_flight
    assert (ended == 1).all()
    assert prefill.tolist() == [r.prompt_tokens for r in requests]
    assert decode.tolist() == [r.output_tokens - 1 for r in requests]
    assert yielded.tolist() == [r.output_tokens for r in requests]
    assert list(itertools.chain(*(batch.arrivals.tolist() for batch in batches))) == list(range(len(requests)))


@given(cases())
def test_every_token_is_computed_once(case):
    check_conservation(*case)


@pytest.mark.parametrize("concurrency", [1, 16])
def test_every_token_of_the_real_trace_is_computed_once(concurrency):
    if not AZURE.exists():
        pytest.skip(f"needs the Azure trace shared/data/requests/{AZURE.name}")
    check_conservation(list(itertools.islice(read_trace(AZURE), 64)), concurrency, 2048)


# Open loop: requests come at their own time, in µs


def open_steps(loop, took):
    """(start, entries, arrivals) of every step, each taking ``took`` µs."""
    found, now = [], 0.0
    while (started := loop.next(now)) is not None:
        found.append((started.start_us, steps([started.batch])[0], started.batch.arrivals.tolist()))
        now = started.start_us + took
    return found


def test_an_engine_that_has_nothing_to_do_waits_for_the_next_request():
    loop = OpenLoop(requests_of((3, 2), (2, 1)), [5.0, 100.0], Limits(4, 8))
    assert open_steps(loop, took=10.0) == [
        (5.0, [(0, 3, 0, 0)], [0]),
        (15.0, [(0, 0, 1, 3)], []),
        (100.0, [(1, 2, 0, 0)], [1]),
    ]


def test_requests_that_come_during_a_step_join_the_next_and_wait_where_all_slots_are_taken():
    """Steps of 10 µs. Requests 1 and 2 come together in the first; only one more may be in flight."""
    loop = OpenLoop(requests_of((3, 3), (2, 1), (2, 1)), [0.0, 4.0, 4.0], Limits(2, 8))
    assert open_steps(loop, took=10.0) == [
        (0.0, [(0, 3, 0, 0)], [0]),
        (10.0, [(0, 0, 1, 3), (1, 2, 0, 0)], [1, 2]),
        (20.0, [(0, 0, 1, 4), (2, 2, 0, 0)], []),
    ]


def test_an_open_loop_behind_its_arrivals_serves_them_in_order():
    loop = OpenLoop(requests_of(*[(2, 1)] * 4), [0.0, 1.0, 2.0, 3.0], Limits(1, 8))
    assert loop.next(0.0).batch.entries == [Entry(0, 2, 0, 0)]
    assert loop.finished == loop.arrived == 1
    assert [step[1] for step in open_steps(loop, took=50.0)] == [[(index, 2, 0, 0)] for index in (1, 2, 3)]
    assert (loop.finished, loop.arrived) == (4, 4)


def test_every_request_has_one_arrival():
    with pytest.raises(ValueError, match=r"^there are 2 requests and 1 arrivals$"):
        OpenLoop(requests_of((1, 1), (1, 1)), [0.0], Limits(1, 8))


def test_a_bounded_schedule_that_is_too_long_is_refused_as_well(monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 5)
    with pytest.raises(ValueError, match="over 5 entries or"):
        closed_loop(requests_of((8, 6)), 1, 8, kv_tokens=100)


@pytest.mark.parametrize("concurrency", [64, 256])
@pytest.mark.parametrize("kv_tokens", [None, 100_000])
def test_the_whole_real_trace_is_served_within_every_limit(concurrency, kv_tokens):
    """All 19,366 requests: each ends once with its own tokens; no step exceeds its tokens, its slots or the cache."""
    if not AZURE.exists():
        pytest.skip(f"needs the Azure trace shared/data/requests/{AZURE.name}")
    requests = list(read_trace(AZURE))
    assert len(requests) == 19_366
    batches = closed_loop(requests, concurrency, 2048, kv_tokens=kv_tokens)
    request, prefill, decode, context = np.concatenate([batch.table for batch in batches]).T
    yields, ends = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("yields", "ends"))
    sizes = [len(batch.table) for batch in batches]
    starts = np.cumsum([0, *sizes[:-1]])
    assert np.add.reduceat(prefill + decode, starts).max() <= 2048
    assert max(sizes) <= concurrency
    # What a step leaves in the cache.
    assert kv_tokens is None or np.add.reduceat(prefill + decode + context, starts).max() <= kv_tokens
    assert (np.bincount(request[ends], minlength=len(requests)) == 1).all()
    outputs = np.array([r.output_tokens for r in requests])
    assert (np.bincount(request[yields], minlength=len(requests)) == outputs).all()
    recomputed = sum(batch.recomputed_tokens for batch in batches)
    assert (recomputed > 0) == (kv_tokens is not None)
    total = sum(r.prompt_tokens + r.output_tokens - 1 for r in requests)
    assert prefill.sum() + decode.sum() == total + recomputed
