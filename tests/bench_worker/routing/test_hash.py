"""Hash routing: token ids alone decide, by a balanced table."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.routing import build, reference
from bench_worker.routing.hash import make_table
from tests.bench_worker.routing.make import made_scores, weights_of


@given(st.integers(1, 200), st.integers(1, 17), st.data(), st.integers(0, 2**31))
def test_the_table_gives_every_id_distinct_experts_and_every_expert_equally_many_ids(vocab, experts, data, seed):
    top_k = data.draw(st.integers(1, experts))
    table = make_table(vocab, experts, top_k, seed)
    assert table.shape == (vocab, top_k)
    assert all(len(set(row)) == top_k for row in table.tolist())
    load = torch.bincount(table.flatten(), minlength=experts)
    assert int(load.max() - load.min()) <= 1


def test_a_table_is_fixed_by_its_seed():
    assert torch.equal(make_table(100, 8, 2, seed=3), make_table(100, 8, 2, seed=3))
    assert not torch.equal(make_table(100, 8, 2, seed=3), make_table(100, 8, 2, seed=4))


def test_experts_are_not_always_seen_with_the_same_others():
    table = make_table(50_000, 8, 2, seed=0)
    pairs = torch.bincount(table[:, 0] * 8 + table[:, 1], minlength=64).view(8, 8)
    assert (pairs + pairs.T + torch.eye(8) > 0).all()


def test_it_equals_the_table_read_by_a_loop():
    router = build("hash", 8, top_k=3, vocab=50)
    ids = torch.tensor([7, 0, 49, 7])
    expected = {(t, e): w for t, e, w in reference.by_table(ids.tolist(), router.table.tolist())}
    assert weights_of(router.route(made_scores(4, 8), ids)) == pytest.approx(expected)


def test_scores_play_no_part_and_the_same_id_has_the_same_experts():
    router = build("hash", 8, top_k=2, vocab=50)
    ids = torch.tensor([3, 11, 3])
    one, other = router.route(made_scores(3, 8, seed=1), ids), router.route(made_scores(3, 8, seed=2), ids)
    assert torch.equal(one.expert, other.expert)
    assert one.expert[:2].tolist() == one.expert[4:].tolist()
    assert one.weight.tolist() == [0.5] * 6


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (None, "token_ids: none are given, and hash routes by nothing else"),
        (torch.tensor([1, 2, 3]), r"token_ids: has the shape \[3\]; it must be \[2 tokens\]"),
        (torch.tensor([0, 50]), "token_ids: 50 is not between 0 and 49"),
        (torch.tensor([-1, 3]), "token_ids: -1 is not between 0 and 49"),
    ],
)
def test_ids_that_are_none_are_an_error(ids, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        build("hash", 4, top_k=1, vocab=50).route(made_scores(2, 4), ids)
