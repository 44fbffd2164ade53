"""The scores of a condition's steps: whose experts are hot, what repeats, and what a recording says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.routing import build
from bench_worker.spec import Load
from bench_worker.step_layout import Segment, StepLayout
from bench_worker.workload.load import ExpertLoad
from bench_worker.workload.recordings import from_counts, from_ids, read_recording


def layout(*segments):
    """``(request, context, length)`` each, in slots of the same number."""
    start, found = 0, []
    for request, context, length in segments:
        found.append(Segment(request, start, length, context, request))
        start += length
    return StepLayout(found, torch.zeros(start, dtype=torch.int64), torch.arange(start), torch.tensor([0]))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def load(recording=None, num_experts=8, top_k=2, layers=1, **fields):
    if recording is not None:
        fields = {"profile": "recorded", "recording": "mine", **fields}
    return ExpertLoad(Load(**fields), num_experts, top_k, layers, 0, recording)


def routed(scores, top_k):
    """The experts of each token under token choice."""
    chosen = build("token_choice", scores.shape[1], top_k=top_k).route(scores)
    return [set(chosen.expert[chosen.token == token].tolist()) for token in range(len(scores))]


def test_each_layer_has_its_own_hot_experts():
    first, second = load(layers=2, num_experts=64, skew=2.0).scores(0, layout((0, 0, 500)), generator())
    assert first.argmax(dim=1).mode().values != second.argmax(dim=1).mode().values


def test_all_variants_share_a_steps_scores_and_the_next_step_has_its_own():
    made = load()
    first, again, other = (made.scores(step, layout((0, 0, 4)), generator(step)) for step in (0, 0, 1))
    assert first[0] is again[0]
    assert not torch.equal(first[0], other[0])


def test_a_recorded_load_is_drawn_layer_by_layer_with_its_own_shares():
    counts = np.array([[90, 10, 0, 0, 50, 50, 0, 0], [0, 0, 60, 40, 0, 0, 50, 50]])
    made = load(from_counts(counts))
    seen = set()
    for step in range(40):
        chosen = made.scores(step, layout((0, 0, 4000)), generator(step))[0].topk(2).indices
        share = torch.bincount(chosen.flatten(), minlength=8) / 8000
        row = 0 if share[:2].sum() > 0 else 1
        torch.testing.assert_close(share, torch.tensor(counts[row] / 200, dtype=torch.float32), atol=0.02, rtol=0)
        seen.add(row)
    assert seen == {0, 1}


def test_recorded_tokens_are_replayed_one_by_one_each_request_from_its_own_sequence():
    # Two sequences, of 3 and 2 tokens, in two layers; request 2 reads the first again.
    ids = np.array([[[t % 8, (t + 1) % 8], [(t + 4) % 8, (t + 6) % 8]] for t in range(5)])
    made = load(from_ids(ids, np.array([3, 2]), num_experts=8), layers=2)
    step = layout((0, 1, 4), (1, 0, 1), (2, 5, 1))
    tokens = [1, 2, 0, 1, 3, 2]  # request 0 from its second token on, going round
    for scores in made.scores(0, step, generator()):
        chosen = [set(row) for row in scores.topk(2).indices.tolist()]
        assert chosen in [[set(ids[token, row]) for token in tokens] for row in (0, 1)]


@given(st.integers(1, 12), st.data())
def test_a_replay_routes_every_token_to_its_recorded_experts(num_experts, data):
    top_k = data.draw(st.integers(1, num_experts))
    token = st.permutations(range(num_experts)).map(lambda experts: experts[:top_k])
    ids = np.array(data.draw(st.lists(token, min_size=1, max_size=20)))
    recording = from_ids(ids[:, None], np.array([len(ids)]), num_experts)
    [scores] = load(recording, num_experts, top_k).scores(0, layout((0, 0, len(ids))), generator())
    assert routed(scores, top_k) == [set(row) for row in ids.tolist()]


def test_a_published_recording_is_replayed_as_it_was():
    path = Path(__file__).resolve().parents[4] / "shared/data/routing/gptoss20b_decode_topk_ids.npz"
    if not path.exists():
        pytest.skip("the recordings of ../shared/data/routing aren't here")
    recording = read_recording(path)
    length = int(recording.lengths[0])
    layers = load(recording, 32, 4, layers=3).scores(0, layout((0, 0, length)), generator())
    replayed = [routed(scores, 4) for scores in layers]
    recorded = [[set(row) for row in recording.ids[:length, layer].tolist()] for layer in range(24)]
    assert all(tokens in recorded for tokens in replayed)


def test_correlated_tokens_of_a_request_repeat_experts_over_steps_too():
    made = load(num_experts=32, correlation=0.9, profile="uniform")
    prompt = made.scores(0, layout((0, 0, 200)), generator(0))[0]
    decoded = [made.scores(step, layout((0, 199 + step, 1)), generator(step))[0] for step in range(1, 60)]
    tokens = torch.cat([prompt, *decoded]).topk(4).indices
    common = (tokens[1:, :, None] == tokens[:-1, None, :]).any(dim=2).double().mean(dim=1)
    for part in (common[:199], common[199:]):
        assert float(part.mean()) > 0.6  # drawn anew it would be 4/32


def test_a_new_request_keeps_nothing_of_the_one_that_had_its_slot():
    made = load(num_experts=16, correlation=0.999, profile="uniform")
    before = made.scores(0, layout((0, 0, 1)), generator(0))[0]
    after = made.scores(1, layout((0, 0, 1)), generator(1))[0]
    assert not torch.isclose(before, after).any()


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_load_is_the_same_with_and_without_correlation(correlation):
    scores = load(num_experts=8, correlation=correlation).scores(0, layout((0, 0, 20_000)), generator())[0]
    share = torch.bincount(scores.argmax(dim=1), minlength=8) / 20_000
    fresh = load(num_experts=8).scores(0, layout((0, 0, 20_000)), generator(9))[0]
    expected = torch.bincount(fresh.argmax(dim=1), minlength=8) / 20_000
    torch.testing.assert_close(share, expected, atol=0.025, rtol=0)
