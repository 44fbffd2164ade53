"""Attention, embedding and head of a step that is divided over ranks."""

import numpy as np
import pytest
import torch

from bench_worker.parallel.exchange import Virtual
from bench_worker.parallel.layout import Layout
from bench_worker.parallel.rank_around import around_step, part_of, work_of
from bench_worker.roofline import Work
from bench_worker.stages import NoClock
from bench_worker.step_input import StepInput
from bench_worker.step_layout import Segment, StepLayout
from bench_worker.workload.schedule import Batch
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


#: Request 0 computes three tokens of its prompt, request 1 decodes after two, request 2 begins. No 2 yields nothing.
BATCH = Batch(
    np.array([[1, 0, 1, 2], [0, 3, 0, 0], [2, 2, 0, 0]]),
    yields=np.array([True, True, False]), ends=np.zeros(3, bool), arrivals=np.zeros(0, int),
)  # fmt: skip


def work(config, rank, tp, dp, in_turn=False, **kernels):
    of = spec(config, tp=tp, dp=dp, kernels={"attention": True, **kernels})
    return work_of(rank, network(of), Layout(tp, dp, 1), of, BATCH, in_turn)


def test_a_rank_works_for_the_requests_of_its_group(tiny_config):
    """The model: 64 hidden, 4 query and 2 key-value heads of 16, 256 tokens; two layers in float32."""
    first, second = (work(tiny_config, rank, 1, 2) for rank in (0, 1))
    parameters = 64 * (4 + 2 * 2) * 16 + 4 * 16 * 64 + 2 * 16  # with the norms of a query and a key head
    # requests 0 and 2: five rows, which see 1 + 2 + 3 and 1 + 2 tokens; as many read from the cache as are written
    assert first["attention"] == Work(
        2 * (2 * 5 * parameters + 4 * 4 * 16 * 9), 2 * parameters * 4, 2 * ((5 + 5) * 64 + 4 * 5 * 64) * 4
    )
    # request 1: one row, which sees three tokens
    assert second["attention"] == Work(
        2 * (2 * parameters + 4 * 4 * 16 * 3), 2 * parameters * 4, 2 * ((3 + 1) * 64 + 4 * 64) * 4
    )
    assert first["other.embedding"].row_bytes == 5 * second["other.embedding"].row_bytes == 5 * 2 * 64 * 4
    # one row of each yields a token
    assert first["other.head"] == second["other.head"] == Work(2 * 64 * 256, 64 * 256 * 4, (64 + 256) * 4)


def test_the_ranks_of_a_group_have_equal_shares(tiny_config):
    ranks = [work(tiny_config, rank, 2, 2) for rank in range(4)]
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    assert set(ranks[0]) == {"attention.heads", "other.embedding", "other.head"}
    whole = work(tiny_config, 0, 1, 2)
    norms = 2 * 2 * 5 * 32  # of 32 numbers for five rows in two layers, whole on each
    assert ranks[0]["attention.heads"].flops - norms == (whole["attention"].flops - norms) / 2
    assert ranks[0]["other.head"].weight_bytes == whole["other.head"].weight_bytes / 2


def test_a_group_without_tokens_has_no_work(tiny_config):
    assert set(work(tiny_config, 3, 1, 4).values()) == {Work()}


def test_ranks_in_turn_may_find_the_weights_of_the_group_before(tiny_config):
    """What the cache does not hold of them counts, as of rows."""
    alone = work(tiny_config, 1, 1, 2)
    first, later = (work(tiny_config, rank, 1, 2, in_turn=True) for rank in (0, 1))
    assert first == work(tiny_config, 0, 1, 2)
    for stage, own in later.items():
        assert own.flops == alone[stage].flops
        assert (own.weight_bytes, own.reread_bytes) == (0, alone[stage].weight_bytes)
        assert own.row_bytes == alone[stage].row_bytes


def test_without_attention_there_is_no_work_around_the_layers(tiny_config):
    assert work(tiny_config, 0, 1, 2, attention=False) == {}
