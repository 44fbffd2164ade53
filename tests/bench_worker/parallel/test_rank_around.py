"""Attention, embedding and head of a step that is divided over ranks."""

import torch

from bench_worker.parallel.rank_around import RankAround, part_of
from bench_worker.stages import NoClock
from bench_worker.step_layout import Segment, StepLayout
from tests.bench_worker.parallel.make import network, spec

LAYOUT = StepLayout(
    [Segment(0, 0, 3, 0, 0), Segment(1, 3, 1, 2, 1), Segment(2, 4, 2, 0, 2)],
    slot=torch.tensor([0, 0, 0, 1, 2, 2]), position=torch.tensor([0, 1, 2, 2, 0, 1]), yielding=torch.tensor([2, 3]),
)  # fmt: skip


def test_a_ranks_part_holds_its_own_requests_with_their_places_in_the_cache():
    part = part_of(LAYOUT, torch.tensor([0, 1, 2, 4, 5]))
    assert part.segments == [Segment(0, 0, 3, 0, 0), Segment(2, 3, 2, 0, 2)]
    assert part.slot.tolist() == [0, 0, 0, 2, 2]
    assert part.position.tolist() == [0, 1, 2, 0, 1]
    assert part.yielding.tolist() == [2]
    assert part_of(LAYOUT, torch.tensor([], dtype=torch.int64)).num_tokens == 0


def test_ranks_attend_as_the_whole_batch_does(tiny_config):
    made = network(spec(tiny_config, kernels={"attention": True}))
    made.make_room(3, 8)
    token_ids = torch.arange(6)

    def attended(rows):
        own = RankAround(made.around, token_ids[rows], part_of(LAYOUT, rows))
        own.begin(NoClock())
        normed = own.attend(0, NoClock())
        own.update = normed  # a MoE layer that changes nothing
        own.end(NoClock())
        return normed

    whole = attended(torch.arange(6))
    for rows in (torch.tensor([0, 1, 2, 4, 5]), torch.tensor([3])):
        assert torch.allclose(attended(rows), whole[rows], atol=1e-6)
    assert attended(torch.tensor([], dtype=torch.int64)).shape == (0, 64)
