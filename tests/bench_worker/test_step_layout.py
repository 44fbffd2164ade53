"""Where a step's rows and caches lie, on a schedule small enough to follow by hand."""

import torch

from bench_worker.step_layout import Segment, Slots, one_request
from bench_worker.workload import Request
from bench_worker.workload.schedule import closed_loop

CPU = torch.device("cpu")


def layouts(requests, concurrency, max_batch_tokens, **options):
    slots = Slots(concurrency)
    return [slots.layout(batch, CPU) for batch in closed_loop(requests, concurrency, max_batch_tokens, **options)]


def test_two_requests_and_a_third_that_takes_a_freed_slot():
    # Room for 4 tokens a step. Requests: prompt 3 → 2 tokens, prompt 2 → 1 token, prompt 1 → 1 token.
    steps = layouts([Request(0, 3, 2), Request(0, 2, 1), Request(0, 1, 1)], 2, 4)
    assert [step.segments for step in steps] == [
        [Segment(0, 0, 3, 0, 0), Segment(1, 3, 1, 0, 1)],  # the whole first prompt, a token of the second
        [Segment(0, 0, 1, 3, 0), Segment(1, 1, 1, 1, 1)],  # a decode, and the second prompt's last token: both end
        [Segment(1, 0, 1, 0, 2)],  # the third gets a slot that was freed
    ]
    assert [step.position.tolist() for step in steps] == [[0, 1, 2, 0], [3, 1], [0]]
    assert [step.slot.tolist() for step in steps] == [[0, 0, 0, 1], [0, 1], [1]]
    assert [step.yielding.tolist() for step in steps] == [[2], [0, 1], [0]]


def test_no_two_requests_share_a_slot_and_none_is_lost():
    requests = [Request(0, 1 + i % 7, 1 + i % 5) for i in range(40)]
    for step in layouts(requests, 5, 8):
        used = [segment.slot for segment in step.segments]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(5))
        assert step.num_tokens == sum(segment.length for segment in step.segments) <= 8


def test_one_request_is_a_single_prompt():
    layout = one_request(3, torch.device("cpu"))
    assert layout.num_tokens == 3
    assert layout.position.tolist() == [0, 1, 2]
    assert layout.yielding.tolist() == [2]
    (segment,) = layout.segments
    assert (segment.slot, segment.start, segment.length, segment.context) == (0, 0, 3, 0)


def test_a_preempted_request_gives_its_slot_back_and_takes_a_new_one():
    """Request 1 is preempted in step 2 and comes back in step 5, in the slot that 0 had until then."""
    steps = layouts([Request(0, 4, 5), Request(0, 4, 4)], 2, 16, kv_tokens=10)
    assert [step.segments for step in steps[1:3]] == [
        [Segment(0, 0, 1, 4, 0), Segment(1, 1, 1, 4, 1)],
        [Segment(0, 0, 1, 5, 0)],
    ]
    assert steps[5].segments == [Segment(0, 0, 6, 0, 1)]
    assert steps[5].position.tolist() == [0, 1, 2, 3, 4, 5]
