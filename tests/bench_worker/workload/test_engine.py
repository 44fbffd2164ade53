"""The scheduler with a bounded KV cache and reuse of prefixes: by hand, and against a slow one."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.workload import engine, prefix
from bench_worker.workload.engine import Engine, Limits
from bench_worker.workload.requests import Request, read_prefixes, read_trace
from bench_worker.workload.schedule import OpenLoop, closed_loop
from tests.bench_worker.workload.slow_engine import SlowEngine

DATA = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "requests"


def requests_of(*lengths):
    return [Request(0.0, prompt, output) for prompt, output in lengths]


def steps(batches):
    return [[tuple(entry) for entry in batch.entries] for batch in batches]


def flagged(batch, flags):
    return batch.table[flags, 0].tolist()


# By hand: entries are (request, prefill, decode, context)


def test_a_request_waits_until_its_whole_prompt_has_room():
    """Twelve tokens of cache. Request 0 grows from 4 to 6, so 1 with its prompt of 7 waits for its end."""
    batches = closed_loop(requests_of((4, 3), (7, 1)), 2, 16, kv_tokens=10)
    assert steps(batches) == [[(0, 4, 0, 0)], [(0, 0, 1, 4)], [(0, 0, 1, 5)], [(1, 7, 0, 0)]]
    assert [batch.arrivals.tolist() for batch in batches] == [[0, 1], [], [], []]


def test_the_request_that_arrived_last_is_preempted_and_computed_again():
    """Ten tokens of cache. Both prompts take 8, the first decodes fill it. In step 2 there is no room for two tokens:
    request 1 leaves with 5 tokens in the cache. Its 4 prompt tokens and the 2 it has yielded need 6 and 0 holds 6 to 8,
    so it comes back when 0 has ended, and then yields its third token."""
    batches = closed_loop(requests_of((4, 5), (4, 4)), 2, 16, kv_tokens=10)
    assert steps(batches) == [
        [(0, 4, 0, 0), (1, 4, 0, 0)],
        [(0, 0, 1, 4), (1, 0, 1, 4)],
        [(0, 0, 1, 5)],
        [(0, 0, 1, 6)],
        [(0, 0, 1, 7)],
        [(1, 6, 0, 0)],
        [(1, 0, 1, 6)],
    ]
    assert [batch.preempted.tolist() for batch in batches] == [[], [], [1], [], [], [], []]
    assert [batch.recomputed_tokens for batch in batches] == [0, 0, 0, 0, 0, 5, 0]
    assert [flagged(batch, batch.yields) for batch in batches] == [[0, 1], [0, 1], [0], [0], [0], [1], [1]]
    assert [flagged(batch, batch.ends) for batch in batches] == [[], [], [], [], [0], [], [1]]


def test_a_prompt_on_its_way_is_preempted_before_a_decode():
    """Eight tokens a step, twelve of cache: request 1 has computed 7 of its 8 prompt tokens when 0 needs its room."""
    batches = closed_loop(requests_of((3, 4), (8, 1)), 2, 7, kv_tokens=12)
    assert steps(batches) == [
        [(0, 3, 0, 0), (1, 4, 0, 0)],
        [(0, 0, 1, 3), (1, 4, 0, 4)],
        [(0, 0, 1, 4)],
        [(0, 0, 1, 5)],
    ]
    batches = closed_loop(requests_of((3, 4), (9, 1)), 2, 7, kv_tokens=12)
    assert steps(batches) == [
        [(0, 3, 0, 0), (1, 4, 0, 0)],
        [(0, 0, 1, 3)],
        [(0, 0, 1, 4)],
        [(0, 0, 1, 5)],
        [(1, 7, 0, 0)],
        [(1, 2, 0, 7)],
    ]
    assert [batch.preempted.tolist() for batch in batches] == [[], [1], [], [], [], []]
    assert [batch.recomputed_tokens for batch in batches] == [0, 0, 0, 0, 4, 0]


@pytest.fixture
def blocks_of_four(monkeypatch):
    for module in (engine, prefix):
        monkeypatch.setattr(module, "BLOCK_TOKENS", 4)


def test_a_prompt_that_begins_like_an_earlier_one_starts_behind_the_blocks_they_share(blocks_of_four):
    """Two whole blocks of four tokens are shared; the third differs. A prompt that is known to its last token still
    computes its last block, to yield."""
    prefixes = [(7, 8, 9), (7, 8, 10), (7, 8)]
    batches = closed_loop(requests_of((10, 1), (11, 1), (8, 1)), 1, 16, prefixes=prefixes)
    assert steps(batches) == [[(0, 10, 0, 0)], [(1, 3, 0, 8)], [(2, 4, 0, 4)]]
    assert [batch.reused_tokens for batch in batches] == [0, 8, 4]


def test_a_block_can_not_be_reused_in_the_step_that_computes_it(blocks_of_four):
    batches = closed_loop(requests_of((6, 1), (6, 1), (6, 1)), 2, 12, prefixes=[(1, 2)] * 3)
    assert steps(batches) == [[(0, 6, 0, 0), (1, 6, 0, 0)], [(2, 2, 0, 4)]]


def test_shared_blocks_take_room_once_and_idle_ones_leave_for_who_needs_it(blocks_of_four):
    """Ten tokens of cache: 1 shares the 4 of block 5 with 0, so both fit. What 2 needs throws the idle block out."""
    prefixes = [(5,), (5,), (6, 6), (5,)]
    batches = closed_loop(requests_of((5, 3), (6, 1), (8, 1), (5, 1)), 2, 8, kv_tokens=10, prefixes=prefixes)
    assert steps(batches) == [
        [(0, 5, 0, 0)],
        [(0, 0, 1, 5), (1, 2, 0, 4)],
        [(0, 0, 1, 6)],
        [(2, 8, 0, 0)],
        [(3, 5, 0, 0)],
    ]


def test_prefixes_of_a_preempted_request_are_found_again(blocks_of_four):
    batches = closed_loop(requests_of((4, 5), (5, 4)), 2, 16, kv_tokens=11, prefixes=[(1,), (2,)])
    assert [batch.preempted.tolist() for batch in batches] == [[], [], [1], [], [], [], []]
    assert steps(batches)[5] == [(1, 7, 0, 0)]  # request 0 had needed the room of its block
    batches = closed_loop(requests_of((4, 3), (5, 4)), 2, 16, kv_tokens=11, prefixes=[(1,), (2,)])
    assert steps(batches)[3] == [(1, 3, 0, 4)]
    assert batches[3].recomputed_tokens == 2


# Refusals


def test_a_request_that_the_cache_can_not_hold_alone_is_refused():
    closed_loop(requests_of((4, 5)), 1, 4, kv_tokens=8)
    with pytest.raises(ValueError, match=r"^request 1 leaves 9 tokens in the KV cache; kv_tokens is 8$"):
        closed_loop(requests_of((4, 5), (9, 1)), 1, 4, kv_tokens=8)


# Against a scheduler that does one thing at a time


@st.composite
def cases(draw):
    block = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), max_size=10))
    requests = requests_of(*lengths)
    max_batch_tokens = draw(st.integers(1, 24))
    concurrency = draw(st.integers(1, min(6, max_batch_tokens)))
    alone = max((prompt + output - 1 for prompt, output in lengths), default=1)
    kv_tokens = draw(st.one_of(st.none(), st.integers(alone, alone + 30)))
    prefixes = None
    if draw(st.booleans()):  # a block names all that stands before it
        shared = [draw(st.integers(0, 3)) for _ in lengths]
        branch = [draw(st.integers(0, 2)) for _ in lengths]
        prefixes = [
            tuple(hash((branch[i] if place >= shared[i] else -1, place)) for place in range(-(-prompt // block)))
            for i, (prompt, _) in enumerate(lengths)
        ]
    return requests, concurrency, max_batch_tokens, kv_tokens, prefixes, block


def fast_steps(batches, starts):
    return [
        (start, steps([b])[0], flagged(b, b.yields), flagged(b, b.ends), b.arrivals.tolist(), b.preempted.tolist())
        for start, b in zip(starts, batches, strict=True)
    ]


def slow_steps(found):
    return [tuple(step)[:-1] for step in found]


@given(cases())
def test_a_closed_loop_does_what_the_slow_engine_does(case):
    requests, concurrency, max_batch_tokens, kv_tokens, prefixes, block = case
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine, prefix):
            patch.setattr(module, "BLOCK_TOKENS", block)
        batches = closed_loop(requests, concurrency, max_batch_tokens, kv_tokens=kv_tokens, prefixes=prefixes)
    slow = SlowEngine(*case).serve(lambda _now, unfinished, _next: unfinished < concurrency, lambda _entries: 1.0)
    assert fast_steps(batches, range(len(batches))) == slow_steps(slow)


@given(cases(), st.data())
def test_an_open_loop_does_what_the_slow_engine_does(case, data):
    requests, concurrency, max_batch_tokens, kv_tokens, prefixes, block = case
    arrival = sorted(data.draw(st.lists(st.integers(0, 200), min_size=len(requests), max_size=len(requests))))
    per_token, per_step = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 5))

    def took(entries):
        return per_step + per_token * sum(entry[1] + entry[2] for entry in entries)

    with pytest.MonkeyPatch.context() as patch:
        for module in (engine, prefix):
            patch.setattr(module, "BLOCK_TOKENS", block)
        loop = OpenLoop(requests, arrival, Limits(concurrency, max_batch_tokens, kv_tokens), prefixes)
        batches, starts, now = [], [], 0.0
        while (started := loop.next(now)) is not None:
            batches.append(started.batch)
            starts.append(started.start_us)
            now = started.start_us + took(steps([started.batch])[0])
    assert loop.finished == len(requests)
    slow = SlowEngine(*case).serve(
        lambda now, _unfinished, index: arrival[index] <= now, took, wait=lambda index: arrival[index]
    )
    assert fast_steps(batches, starts) == slow_steps(slow)


@given(cases())
def test_without_bounds_the_engine_does_what_the_whole_schedule_does(case):
    requests, concurrency, max_batch_tokens, *_ = case
    whole = closed_loop(requests, concurrency, max_batch_tokens)
    stepwise = closed_loop(requests, concurrency, max_batch_tokens, kv_tokens=10**9)
    assert fast_steps(whole, range(len(whole))) == fast_steps(stepwise, range(len(stepwise)))


# Conservation


def check_conservation(requests, limits, batches, prefixes=None):
    """Every request yields each of its tokens once and ends once; what is computed more than once is counted as such;
    no step exceeds its tokens or, where no block is shared, the KV cache."""
    prefill, decode, ended, yielded = (np.zeros(len(requests), int) for _ in range(4))
    in_flight, context = set(), {}
    for batch in batches:
        in_flight |= set(batch.arrivals.tolist())
        for request in batch.preempted.tolist():
            del context[request]
        assert batch.tokens <= limits.max_batch_tokens
        for request, prompt, one, before in batch.table.tolist():
            assert request in in_flight
            assert context.get(request, before) == before
            context[request] = before + prompt + one
        assert len(context) <= limits.concurrency
        if limits.kv_tokens is not None and prefixes is None:
            assert sum(context.values()) <= limits.kv_tokens
        np.add.at(prefill, batch.table[:, 0], batch.table[:, 1])
        np.add.at(decode, batch.table[:, 0], batch.table[:, 2])
        yielded[batch.table[batch.yields, 0]] += 1
        for request in flagged(batch, batch.ends):
            ended[request] += 1
            in_flight.remove(request)
            del context[request]
    assert not in_flight
    assert (ended == 1).all()
    assert yielded.tolist() == [request.output_tokens for request in requests]
    prompts, outputs = np.array([request[1:3] for request in requests]).T
    readmitted = sum(len(batch.preempted) for batch in batches)
    assert (decode <= outputs - 1).all()
    assert (outputs - 1 - decode).sum() <= readmitted
    recomputed, reused = (sum(getattr(b, f"{kind}_tokens") for b in batches) for kind in ("recomputed", "reused"))
    if prefixes is None:
        assert reused == 0
        # A token that is yielded by a prompt computed again enters the cache as a part of the next one's decode or not
        # at all, so prefill and decode together hold every token but the last of each request, and what was lost.
        assert prefill.sum() + decode.sum() == prompts.sum() + outputs.sum() - len(requests) + recomputed
    else:
        assert prefill.sum() + reused == prompts.sum()


@pytest.mark.parametrize(("name", "kv_tokens"), [("conv", 60_000), ("code", 40_000)])
def test_every_token_of_a_real_trace_is_computed_within_the_kv_budget(name, kv_tokens):
    path = DATA / f"azure_llm_2023_{name}.csv"
    if not path.exists():
        pytest.skip(f"needs the Azure trace shared/data/requests/{path.name}")
    requests = list(itertools.islice(read_trace(path), 1000))
    limits = Limits(64, 2048, kv_tokens)
    batches = closed_loop(requests, *limits[:2], kv_tokens=kv_tokens)
    assert sum(len(batch.preempted) for batch in batches) > 0
    check_conservation(requests, limits, batches)


def test_a_real_trace_reuses_the_blocks_that_its_hashes_name():
    path = DATA / "mooncake_conversation_head2000.jsonl"
    if not path.exists():
        pytest.skip(f"needs the Mooncake trace shared/data/requests/{path.name}")
    requests = list(itertools.islice(read_trace(path), 300))
    prefixes = read_prefixes(path, 300)
    limits = Limits(8, 2048)
    batches = closed_loop(requests, *limits[:2], prefixes=prefixes)
    check_conservation(requests, limits, batches, prefixes)
    # One request after the other, blocks are found that any earlier request had: 512 tokens each, all but the last.
    one_by_one, seen = closed_loop(requests, 1, 2048, prefixes=prefixes), set()
    expected = 0
    for request, blocks in zip(requests, prefixes, strict=True):
        usable = blocks[: (request.prompt_tokens - 1) // 512]
        expected += 512 * len(list(itertools.takewhile(seen.__contains__, usable)))
        seen |= set(blocks[: request.prompt_tokens // 512])
    assert sum(batch.reused_tokens for batch in one_by_one) == expected > 0


def test_the_engine_says_how_much_is_unfinished_and_held():
    one = Engine(requests_of((4, 2)), Limits(1, 8, 8))
    one.next_batch([0])
    assert (one.unfinished, one.kv_tokens) == (1, 4)
    one.next_batch([])
    assert (one.unfinished, one.kv_tokens) == (0, 0)
