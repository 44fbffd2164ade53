"""Router scores: top-k of them must follow the popularity that they were made from."""

import pytest
import torch

from bench_worker.workload.scores import gumbel_scores, popularity


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
