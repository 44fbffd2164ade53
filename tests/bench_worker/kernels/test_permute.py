"""Packing rows by expert and summing them back, against loops over assignments."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.kernels.permute import RowBuffer, mix, pack
from bench_worker.routing import Assignments, SoftSlots

CPU = torch.device("cpu")


@st.composite
def assignments(draw):
    """Any number of experts a token, 0 included, token-major."""
    num_tokens, num_experts = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    chosen = [sorted(draw(st.sets(st.integers(0, num_experts - 1)))) for _ in range(num_tokens)]
    pairs = [(token, expert) for token, experts in enumerate(chosen) for expert in experts]
    weight = torch.rand(len(pairs), generator=torch.Generator().manual_seed(draw(st.integers(0, 2**31))))
    token, expert = (
        torch.tensor(column, dtype=torch.int64) for column in (zip(*pairs, strict=True) if pairs else ((), ()))
    )
    return Assignments(token, expert, weight, num_tokens, num_experts)


@given(assignments())
def test_rows_lie_expert_by_expert_and_count_true(assigned):
    hidden = torch.randn(assigned.num_tokens, 3)
    packed = pack(hidden, assigned, RowBuffer(3, torch.float32, CPU))
    assert packed.counts.tolist() == [int((assigned.expert == e).sum()) for e in range(assigned.num_experts)]
    rows = iter(packed.rows)
    for expert in range(assigned.num_experts):
        for token in assigned.token[assigned.expert == expert]:
            assert torch.equal(next(rows), hidden[token])


@given(assignments())
def test_combine_sums_each_tokens_rows_by_weight(assigned):
    hidden = torch.randn(assigned.num_tokens, 3)
    buffer = RowBuffer(3, torch.float32, CPU)
    buffer.take(64)
    buffer.poison()
    packed = pack(hidden, assigned, buffer)
    scale = torch.arange(1.0, assigned.num_experts + 1)  # stands in for an expert: multiplies its rows
    outputs = packed.rows * scale.repeat_interleave(packed.counts)[:, None]
    expected = torch.zeros_like(hidden)
    for token, expert, weight in zip(assigned.token, assigned.expert, assigned.weight, strict=True):
        expected[token] += weight * scale[expert] * hidden[token]
    torch.testing.assert_close(packed.combine(outputs), expected)


@given(assignments())
def test_weighting_the_input_equals_weighting_the_output_of_a_linear_expert(assigned):
    hidden = torch.randn(assigned.num_tokens, 3)
    plain = pack(hidden, assigned, RowBuffer(3, torch.float32, CPU))
    weighted = pack(hidden, assigned, RowBuffer(3, torch.float32, CPU), weighted=True)
    torch.testing.assert_close(weighted.combine(weighted.rows), plain.combine(plain.rows))


def test_slots_mix_tokens_and_tokens_mix_slots_back():
    hidden = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    dispatch = torch.tensor([[1.0, 0.5, 0.25, 0.0], [0.0, 0.5, 0.75, 1.0]])  # two experts with two slots each
    back = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]])
    mixed = mix(hidden, SoftSlots(dispatch, back), 2, RowBuffer(2, torch.float32, CPU))
    assert mixed.counts.tolist() == [2, 2]
    assert mixed.rows.tolist() == [[1.0, 10.0], [2.0, 20.0], [2.5, 25.0], [3.0, 30.0]]
    torch.testing.assert_close(mixed.combine(mixed.rows), torch.tensor([[2.45, 24.5], [1.0, 10.0]]))


def test_a_buffer_keeps_its_memory_until_it_must_grow():
    buffer = RowBuffer(4, torch.bfloat16, CPU)
    large = buffer.take(10)
    assert buffer.take(6).data_ptr() == large.data_ptr()
    assert buffer.take(11).shape == (11, 4)


@given(assignments(), st.integers(0, 3), st.booleans())
def test_with_room_set_aside_every_experts_rows_begin_at_its_own_place(assigned, spare, weighted):
    """A row that `pack` puts expert by expert lies ``room`` rows apart instead, and combines to the same."""
    hidden = torch.randn(assigned.num_tokens, 3)
    tight = pack(hidden, assigned, RowBuffer(3, torch.float32, CPU), weighted)
    room = int(tight.counts.max()) + spare
    buffer = RowBuffer(3, torch.float32, CPU)
    buffer.take(64)
    buffer.poison()
    asked = []
    padded = pack(hidden, assigned, buffer, weighted, room=lambda counts, tokens: asked.append(tokens) or room)
    assert asked == [assigned.num_tokens]
    assert padded.rows.shape == (assigned.num_experts * room, 3)
    assert torch.equal(padded.counts, tight.counts)
    by_expert = padded.rows.view(assigned.num_experts, room, 3)
    own = [by_expert[expert, :count] for expert, count in enumerate(tight.counts)]
    assert torch.equal(torch.cat(own), tight.rows)
    torch.testing.assert_close(padded.combine(padded.rows), tight.combine(tight.rows))
