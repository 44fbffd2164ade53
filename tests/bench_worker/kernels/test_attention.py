"""Attention over a growing cache, against attention over the whole sequence at once in float64."""

import math

import pytest
import torch

from bench_worker.kernels.attention import GroupedQueryAttention, LatentAttention, attend, rotary
from bench_worker.models import GQA, MLA
from bench_worker.step_layout import Segment, StepLayout
from bench_worker.weights import Weights

CPU = torch.device("cpu")


def full_attention(query, keys, values, scale, window=None):
    """[C, q, d] queries over [n, C, d] keys, one head, one row and one float64 at a time."""
    num_queries, num_kv = query.shape[1], keys.shape[0]
    out = torch.zeros(query.shape[0], num_queries, values.shape[-1], dtype=torch.float64)
    for row in range(query.shape[0]):
        first = 0 if window is None else max(0, row - window + 1)
        for head in range(num_queries):
            kv = head // (num_queries // num_kv)
            logits = keys[kv, first : row + 1].double() @ query[row, head].double() * scale
            out[row, head] = torch.softmax(logits, 0) @ values[kv, first : row + 1].double()
    return out


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 1, 4], [2, 7]])
def test_chunks_and_decodes_equal_the_whole_sequence(chunks, window):
    torch.manual_seed(0)
    query, keys, values = torch.randn(9, 4, 8), torch.randn(2, 32, 8), torch.randn(2, 32, 5)  # the rest is not theirs
    expected = full_attention(query, keys, values, 0.3, window)
    done = 0
    for length in chunks:
        end = done + length
        out = attend(query[done:end], keys, values, end, 0.3, window)
        torch.testing.assert_close(out.double(), expected[done:end], rtol=1e-4, atol=1e-5)
        done = end


def layout(*segments: Segment) -> StepLayout:
    slot = torch.tensor([s.slot for s in segments for _ in range(s.length)])
    position = torch.tensor([p for s in segments for p in range(s.context, s.context + s.length)])
    return StepLayout(list(segments), slot, position, torch.tensor([], dtype=torch.int64))


BLOCKS = {
    "gqa": lambda w: GroupedQueryAttention(
        32, GQA(kind="gqa", heads=4, kv_heads=2, head_dim=8, qk_norm="head"), None, w
    ),
    "wide norm": lambda w: GroupedQueryAttention(
        32, GQA(kind="gqa", heads=4, kv_heads=4, head_dim=8, qk_norm="width"), None, w
    ),
    "window": lambda w: GroupedQueryAttention(32, GQA(kind="gqa", heads=4, kv_heads=1, head_dim=8), 3, w),
    "mla": lambda w: LatentAttention(32, MLA(kind="mla", heads=4, q_lora=16, kv_lora=12, nope=8, rope=4, v_dim=6), w),
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_request_gets_the_same_rows_whole_in_chunks_and_beside_another(block):
    weights = Weights(torch.float32, CPU, seed=1)
    attention = block(weights)
    hidden, other = weights.noise(6, 32), weights.noise(5, 32)
    update = weights.noise(6, 32)

    attention.make_cache(2, 8, weights)
    stream, normed = attention.forward(hidden, update, layout(Segment(0, 0, 6, 0)))

    attention.make_cache(2, 8, weights)
    first, _ = attention.forward(hidden[:4], update[:4], layout(Segment(1, 0, 4, 0)))
    attention.forward(other[:4], torch.zeros(4, 32), layout(Segment(0, 0, 4, 0)))
    mixed, mixed_normed = attention.forward(
        torch.cat((other[4:], hidden[4:5])), torch.cat((torch.zeros(1, 32), update[4:5])),
        layout(Segment(0, 0, 1, 4), Segment(1, 1, 1, 4)),
    )  # fmt: skip
    last, _ = attention.forward(hidden[5:], update[5:], layout(Segment(1, 0, 1, 5)))

    torch.testing.assert_close(torch.cat((first, mixed[1:], last)), stream, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mixed_normed[1], normed[4], rtol=1e-4, atol=1e-4)


def test_latent_attention_absorbed_equals_expanded():
    """A decode attends in the latent space; a chunk expands keys and values. Both are one function."""
    weights = Weights(torch.float32, CPU, seed=2)
    attention = BLOCKS["mla"](weights)
    attention.make_cache(1, 8, weights)
    nope, rope = weights.noise(2, 4, 8), weights.noise(2, 4, 4)
    expanded = attention._segment(nope, rope, Segment(0, 0, 2, 5))
    absorbed = attention._segment(nope[1:], rope[1:], Segment(0, 0, 1, 6))
    torch.testing.assert_close(absorbed[0], expanded[1], rtol=1e-4, atol=1e-4)


def test_rotary_turns_each_pair_by_its_angle():
    angle = torch.tensor(0.7)
    turned = rotary(torch.tensor([[[3.0, 4.0]]]), angle.cos().view(1, 1, 1), angle.sin().view(1, 1, 1))
    expected = [3 * math.cos(0.7) - 4 * math.sin(0.7), 4 * math.cos(0.7) + 3 * math.sin(0.7)]
    assert turned.flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("kind", ["gqa", "window", "mla"])
def test_the_parts_of_a_group_sum_to_the_whole(kind, members):
    """Two steps, so that the second reads what the first left in each part's cache. With four members, two of them have
    the same key-value head."""
    weights = Weights(torch.float32, CPU, seed=1)
    whole = BLOCKS[kind](weights)
    parts = [whole.shard(member, members) for member in range(members)]
    for block in (whole, *parts):
        block.make_cache(1, 8, weights)
    for rows, place in ((weights.noise(5, 32), Segment(0, 0, 5, 0)), (weights.noise(1, 32), Segment(0, 0, 1, 5))):
        expected = whole.attend(rows, layout(place))
        found = sum(part.attend(rows, layout(place)) for part in parts)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_part_holds_its_heads_alone():
    """4 query and 2 key-value heads of 8: one of two members has 2 and 1, of four 1 and 1."""
    whole = BLOCKS["gqa"](Weights(torch.float32, CPU, seed=1))
    assert [whole.shard(0, members).qkv.shape[0] for members in (2, 4)] == [(2 + 2) * 8, (1 + 2) * 8]
    assert torch.equal(whole.shard(2, 4).qkv[8:], whole.shard(3, 4).qkv[8:])  # they share the second key-value head
    assert not torch.equal(whole.shard(1, 4).qkv[8:], whole.shard(2, 4).qkv[8:])
