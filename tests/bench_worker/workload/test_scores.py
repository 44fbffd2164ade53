"""Router scores: top-k of them must follow the popularity that they were made from."""

import json
from pathlib import Path

import pytest
import torch

from bench_worker.workload.scores import gumbel_scores, make_scores, popularity, rank_first, repeated, score, zipf


def test_uniform_popularity_is_the_same_for_all():
    assert popularity("uniform", 4, skew=3.0, seed=0).tolist() == [0.25] * 4


def test_zipf_popularity_falls_with_rank():
    # skew 1 over 4 experts: 1, 1/2, 1/3, 1/4 of 25/12
    expected = [12 / 25, 6 / 25, 4 / 25, 3 / 25]
    assert sorted(popularity("zipf", 4, skew=1.0, seed=7).tolist(), reverse=True) == pytest.approx(expected)


def test_layers_with_other_seeds_have_other_hot_experts():
    hottest = {int(popularity("zipf", 64, skew=1.0, seed=seed).argmax()) for seed in range(16)}
    assert len(hottest) > 8


def test_an_unknown_profile_is_refused():
    with pytest.raises(ValueError, match="profile: 'recorded' is not one of uniform, zipf"):
        popularity("recorded", 4, skew=1.0, seed=0)


@pytest.mark.parametrize("profile", ["uniform", "zipf"])
def test_the_best_expert_is_drawn_with_the_probability_that_was_asked_for(profile):
    weights = popularity(profile, 8, skew=1.0, seed=3)
    tokens = 40_000
    scores = gumbel_scores(weights, tokens, torch.Generator().manual_seed(1))
    share = torch.bincount(scores.argmax(dim=1), minlength=8) / tokens
    error = (weights * (1 - weights) / tokens).sqrt()  # of a binomial share
    assert bool(((share - weights).abs() < 5 * error).all())


def test_top_k_is_a_draw_without_replacement():
    # Plackett-Luce with weights 1/2, 1/3, 1/6: P(the pair is {0, 1}) = 1/2 · (1/3)/(1/2) + 1/3 · (1/2)/(2/3) = 7/12
    weights = torch.tensor([1 / 2, 1 / 3, 1 / 6], dtype=torch.float64)
    tokens = 40_000
    chosen = gumbel_scores(weights, tokens, torch.Generator().manual_seed(2)).topk(2).indices.sort(dim=1).values
    share = (chosen == torch.tensor([0, 1])).all(dim=1).double().mean()
    assert abs(float(share) - 7 / 12) < 5 * (7 / 12 * 5 / 12 / tokens) ** 0.5


def test_the_same_generator_state_gives_the_same_scores():
    weights = popularity("zipf", 8, skew=1.0, seed=0)
    first, second = (gumbel_scores(weights, 5, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(first, second)


def four_standard_errors(scores, share, top_k):
    """Whether every expert's share of the assignments is as wanted, by the error of so many draws."""
    picked = torch.bincount(scores.topk(top_k).indices.flatten(), minlength=len(share)) / len(scores)
    wanted = torch.as_tensor(share) * top_k
    error = (wanted * (1 - wanted) / len(scores)).sqrt()
    return bool(((picked - wanted).abs() <= 4 * error + 1e-9).all())


@pytest.mark.parametrize("top_k", [1, 4, 8])
def test_a_fitted_load_is_the_one_that_was_asked_for(top_k):
    share = popularity("zipf", 64, skew=0.5, seed=3)
    assert four_standard_errors(make_scores(share, 20_000, top_k, seed=0), share, top_k)


@pytest.mark.parametrize("layer", range(3))
def test_a_recorded_load_comes_back(layer):
    path = Path(__file__).resolve().parents[4] / "shared/data/routing/olmoe_repo_olmoe_expert_counts.json"
    if not path.exists():
        pytest.skip(f"the recordings of {path.parent.relative_to(path.parents[3])} aren't here")
    counts = torch.tensor(json.loads(path.read_text())["domains"]["arxiv"][layer], dtype=torch.float64)
    share = counts / counts.sum()
    scores = make_scores(share, 20_000, 8, seed=layer)
    assert four_standard_errors(scores, share, 8)
    load = torch.bincount(scores.topk(8).indices.flatten(), minlength=64)
    if float(share.max()) * 8 >= 0.5:  # the hottest expert is in at least half of the tokens
        assert float(load.max() / load.double().mean()) == pytest.approx(float(share.max()) * 64, rel=0.02)
    if layer == 0:
        assert float(share.max()) * 64 == pytest.approx(7.81, abs=0.005)


def test_a_load_of_512_experts_is_fitted_as_well():
    share = popularity("zipf", 512, skew=0.6, seed=1)
    assert four_standard_errors(make_scores(share, 20_000, 10, seed=0), share, 10)


def test_an_expert_without_a_share_is_never_picked_and_its_scores_are_finite():
    scores = make_scores([0.5, 0.5, 0.0, 0.0], 1000, 2, seed=0)
    assert scores.isfinite().all()
    assert scores.topk(2).indices.max() == 1


def test_a_share_above_one_in_k_is_refused():
    with pytest.raises(ValueError, match=r"expert 1 has 0\.7000 of the assignments; with top_k 2"):
        make_scores([0.1, 0.7, 0.2], 10, 2, seed=0)


def test_the_same_seed_gives_the_same_scores():
    first, again, other = (make_scores([0.5, 0.3, 0.2], 5, 1, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_noise_that_stays_repeats_experts_and_leaves_the_load_as_it_is():
    weights = popularity("zipf", 16, skew=1.0, seed=0)
    generator = torch.Generator().manual_seed(5)
    fresh = torch.empty(40_000, 16).exponential_(generator=generator)
    kept = repeated(fresh, torch.rand(fresh.shape, generator=generator) < 0.8)
    new, old = (score(weights, noise).topk(2).indices for noise in (fresh, kept))
    loads = [torch.bincount(chosen.flatten(), minlength=16) / 80_000 for chosen in (new, old)]
    assert float((loads[0] - loads[1]).abs().max()) < 0.01
    same = [float((chosen[1:, :, None] == chosen[:-1, None, :]).any(dim=2).double().mean()) for chosen in (new, old)]
    assert same[1] > same[0] + 0.2


def test_noise_stays_until_it_is_drawn_anew():
    fresh = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    keep = torch.tensor([[True, False], [True, False], [False, True]])
    assert repeated(fresh, keep).tolist() == [[1.0, 1.0], [1.0, 2.0], [3.0, 2.0]]


def test_the_experts_of_a_recording_get_the_highest_scores():
    scores = torch.tensor([[5.0, 1.0, 3.0, 2.0]])
    replayed = rank_first(scores, torch.tensor([[3, 1]]))
    assert replayed.argsort(descending=True).tolist() == [[3, 1, 0, 2]]  # the others keep their order
    assert replayed.sort(descending=True).values[0].tolist() == pytest.approx([5.0, 3.0, 2.0, 1.0], abs=0.002)


def test_equal_scores_let_no_other_expert_in():
    replayed = rank_first(torch.zeros(50, 8), torch.tensor([[6, 2]]).expand(50, 2))
    assert set(map(tuple, replayed.topk(2).indices.sort(dim=1).values.tolist())) == {(2, 6)}


def test_zipf_odds_sum_to_one():
    assert float(zipf(1000, 1.0, seed=0).sum()) == pytest.approx(1.0)
