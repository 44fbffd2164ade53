"""Counting what routing came to, by hand."""

import pytest
import torch

from bench_worker.routing import Assignments, build
from bench_worker.tally import tally

SCORES = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
IDS = torch.tensor([0, 1])
OWN = build("token_choice", 4, top_k=2)  # experts 0 and 1, experts 3 and 2


def test_the_models_own_routing_has_all_experts_in_common():
    found = tally([OWN.route(SCORES)] * 2, [SCORES] * 2, IDS, 4, own=None)
    assert found.rows.tolist() == [[1, 1, 1, 1]] * 2
    assert found.per_token.tolist() == [0, 0, 4, 0, 0]
    assert (found.assignments, found.dropped, found.common, found.either) == (8, 0, 8, 8)


@pytest.mark.parametrize(("top_k", "common", "either"), [(1, 2, 4), (2, 4, 4), (3, 4, 6)])
def test_fewer_or_more_experts_share_as_many_as_they_can(top_k, common, either):
    routed = build("token_choice", 4, top_k=top_k).route(SCORES)
    found = tally([routed], [SCORES], IDS, 4, OWN)
    assert (found.common, found.either) == (common, either)


def test_dropped_assignments_and_tokens_without_experts_are_counted():
    full = Assignments(torch.tensor([0]), torch.tensor([2]), torch.ones(1), 2, 4, dropped=3)
    found = tally([full], [SCORES], IDS, 4, OWN)
    assert found.rows.tolist() == [[0, 0, 1, 0]]
    assert found.per_token.tolist() == [1, 1, 0, 0, 0]
    assert (found.dropped, found.common, found.either) == (3, 0, 5)


def test_slots_are_rows_of_every_expert_and_every_token_is_in_all():
    found = tally([build("soft", 4, slots_per_expert=3).route(SCORES)], [SCORES], IDS, 4, OWN)
    assert found.rows.tolist() == [[3, 3, 3, 3]]
    assert found.per_token.tolist() == [0, 0, 0, 0, 2]
    assert (found.common, found.either) == (None, None)
