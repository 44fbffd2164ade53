"""An all-to-all of real ranks, and in which order a rank gives and takes."""

from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bench_worker.parallel import all_to_all as module
from bench_worker.parallel.all_to_all import WORTH_TELLING_BYTES, all_to_all

RANKS, WIDTH = 3, 16
TYPES = [torch.float32, torch.bfloat16, torch.int64]


def sizes_of(case):
    """Rows from each rank to each: none, few, and so many that their arrival is told."""
    return np.random.default_rng(case).choice([0, 1, 7, WORTH_TELLING_BYTES], (RANKS, RANKS))


def rows_of(case, rank, dtype):
    numbers = torch.arange(int(sizes_of(case)[rank].sum()) * WIDTH) % 97 + 100 * rank
    return numbers.view(-1, WIDTH).to(dtype)


def exchange_every_case(rank, store, cases):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    for case in range(cases):
        sizes, dtype = sizes_of(case), TYPES[case % len(TYPES)]
        into = torch.empty(int(sizes[:, rank].sum()), WIDTH, dtype=dtype)
        all_to_all(into, rows_of(case, rank, dtype), sizes[:, rank].tolist(), sizes[rank].tolist())
        for source, (begin, end) in enumerate(spans(sizes[:, rank])):
            first, last = spans(sizes[source])[rank]
            assert torch.equal(into[begin:end], rows_of(case, source, dtype)[first:last]), (case, source, rank)
    dist.destroy_process_group()


def spans(counts):
    ends = list(accumulate(counts.tolist()))
    return list(zip([0, *ends], ends, strict=False))


def test_every_rank_gets_what_each_has_for_it(tmp_path):
    mp.spawn(exchange_every_case, (tmp_path / "store", 9), nprocs=RANKS)


@pytest.fixture
def posted(monkeypatch):
    """What a rank of three, number 1, does, in its order."""
    done = []

    def does(what):
        def post(rows, group, tag, **peer):
            (other,) = peer.values()
            done.append((what, other, tag, rows.numel()))
            return SimpleNamespace(wait=lambda: done.append((f"{what} ended", other, tag, rows.numel())))

        return post

    fake = {"get_backend": "gloo", "get_world_size": RANKS, "get_rank": 1}
    for name, answer in fake.items():
        monkeypatch.setattr(module.dist, name, lambda _, answer=answer: answer)
    monkeypatch.setattr(module.dist, "irecv", does("receive"))
    monkeypatch.setattr(module.dist, "isend", does("send"))
    return done


def test_a_rank_is_ready_to_receive_before_it_sends(posted):
    all_to_all(torch.empty(4, dtype=torch.uint8), torch.empty(4, dtype=torch.uint8), [1, 2, 1], [2, 2, 0])
    assert posted[:4] == [("receive", 2, 0, 1), ("receive", 0, 0, 1), ("send", 2, 0, 0), ("send", 0, 0, 2)]
    assert {one[:2] for one in posted[4:]} == {
        ("receive ended", 2), ("receive ended", 0), ("send ended", 2), ("send ended", 0)
    }  # fmt: skip


def test_many_rows_have_left_once_their_arrival_is_told_and_few_at_once(posted):
    many = WORTH_TELLING_BYTES
    into, rows = torch.empty(many, dtype=torch.uint8), torch.empty(many + 5, dtype=torch.uint8)
    all_to_all(into, rows, [many, 0, 0], [5, 0, many])
    assert [one[0] for one in posted if one[1:] == (2, 1, 0)] == ["receive", "receive ended"]
    assert ("receive", 0, 1, 0) not in posted
    assert posted.index(("send", 0, 1, 0)) > posted.index(("receive ended", 0, 0, many))
    assert not [one for one in posted if one[:3] == ("send", 2, 1)]
