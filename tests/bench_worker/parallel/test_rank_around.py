"""Attention, embedding and head of a step that is divided over ranks."""

import pytest
import torch

from bench_worker.parallel.exchange import Virtual
from bench_worker.parallel.layout import Layout
from bench_worker.parallel.rank_around import around_step, part_of
from bench_worker.stages import NoClock
from bench_worker.step_input import StepInput
from bench_worker.step_layout import Segment, StepLayout
from tests.bench_worker.parallel.make import CPU, network, spec

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


@pytest.mark.parametrize(("tp", "dp"), [(1, 2), (2, 1), (2, 2), (4, 1)])
def test_ranks_attend_as_the_whole_batch_does(tiny_config, tp, dp):
    """The input of two layers, and logits, of groups of every size."""

    def around(tp, dp):
        of = spec(tiny_config, tp=tp, dp=dp, kernels={"attention": True})
        made, layout = network(of), Layout(tp, dp, 1)
        made.make_room(3, 8)
        for block in (one for part in made.parts.values() for kinds in part.attention for one in kinds.values()):
            block.keys.zero_()  # each part's own noise would be another
            block.values.zero_()
        exchange = Virtual(layout.num_ranks, made.model.hidden, made.dtype, CPU, tp)
        return around_step(made, layout, exchange, step_input(made)), layout

    def step_input(made):
        return StepInput(LAYOUT, torch.arange(6) * 40, torch.empty(0, 64), [])

    def computed(tp, dp):
        ranks, layout = around(tp, dp)
        clocks = [NoClock() for _ in ranks.ranks]
        ranks.begin(clocks)
        rows = layout.rows_of_ranks(*LAYOUT.requests)
        found = []
        for layer in range(2):
            own = ranks.attend(layer, clocks)
            ranks.leave([rows * 2 for rows in own], clocks)  # a MoE layer that doubles
            whole = torch.empty(6, 64)
            for place, part in zip(rows, own, strict=True):
                whole[torch.from_numpy(place)] = part
            found.append(whole)
        logits = torch.cat([one.logits() for one in ranks.ranks[:tp]], dim=1)  # of the first group
        ranks.end(clocks)
        return found, logits[:, :256]

    (expected, expected_logits), (found, logits) = computed(1, 1), computed(tp, dp)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    of_group = [place for place, row in enumerate(LAYOUT.yielding.tolist()) if [0, 0, 0, 1, 2, 2][row] % dp == 0]
    assert torch.allclose(logits, expected_logits[of_group], atol=1e-4)


def test_a_group_without_tokens_makes_the_same_marks(tiny_config):
    class Marks(NoClock):
        def __init__(self):
            self.names = []

        def outer(self, name):
            self.names.append(name)

    made = network(spec(tiny_config, tp=2, dp=2, kernels={"attention": True}))
    made.make_room(3, 8)
    exchange, layout = Virtual(4, 64, made.dtype, CPU, 2), Layout(2, 2, 1)
    one = part_of(LAYOUT, torch.tensor([0, 1, 2, 4, 5]))  # requests 0 and 2, both of the first group
    ranks = around_step(made, layout, exchange, StepInput(one, torch.arange(5), torch.empty(0, 64), []))
    clocks = [Marks() for _ in range(4)]
    ranks.begin(clocks)
    ranks.leave(ranks.attend(0, clocks), clocks)
    ranks.end(clocks)
    assert [name for name in clocks[0].names if name] == [
        "other.embedding", "other.embedding.all_reduce", "attention.heads", "attention.all_reduce", "attention.heads",
        "attention.all_gather", "other.head", "other.head.all_gather",
    ]  # fmt: skip
    assert all(clock.names == clocks[0].names for clock in clocks)
    assert ranks.ranks[3].hidden.shape == (0, 64)
