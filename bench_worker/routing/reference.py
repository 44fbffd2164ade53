"""The strategies once more, slowly and obviously: loops over tokens and experts in Python's own floats.

They share nothing with the fast ones but what is drawn at random (a hash table, the mixers of soft slots). A variant's
choices are compared with these before anything is timed, and the tests compare them on awkward input.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token, ``S`` slots an expert.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from bench_worker.routing.balanced import Balanced
from bench_worker.routing.base import Assignments, Router, SoftSlots
from bench_worker.routing.dynamic import Dynamic
from bench_worker.routing.expert_choice import ExpertChoice
from bench_worker.routing.group_limited import GroupLimited
from bench_worker.routing.hash import Hash
from bench_worker.routing.soft import Soft
from bench_worker.routing.token_choice import TokenChoice

#: Scores [T][E].
Scores = list[list[float]]
#: (token, expert, weight)
Choice = tuple[int, int, float]

#: Balanced assignments may stay below the optimum by this share of what it has over a random one.
GAP = 1e-3


class Wrong(Exception):
    """Choices that are not what their strategy promises; the message says what is wrong."""


def expected(
    router: Router, scores: Tensor, token_ids: Tensor | None, routed: Assignments | SoftSlots
) -> list[Choice] | SoftSlots:
    """What ``router`` has to make of ``scores`` [T, E] and ``token_ids`` [T].

    ``routed`` is what it made of them. Only balanced routing looks at it, whose best assignment is no matter of a
    simple loop: its pairs are proved to be as good as the best, and come back. Raises `Wrong` where they aren't.
    """
    rows = scores.double().tolist()
    match router:
        case TokenChoice():
            return token_choice(rows, router.top_k, **_scoring(router), capacity_factor=router.capacity_factor)
        case ExpertChoice():
            return expert_choice(rows, router.top_k)
        case Dynamic():
            return dynamic(rows, router.top_p, router.max_experts)
        case Balanced():
            assert isinstance(routed, Assignments)
            pairs = list(zip(routed.token.tolist(), routed.expert.tolist(), strict=True))
            return balanced(rows, router.top_k, pairs)
        case Hash():
            assert token_ids is not None
            return by_table(token_ids.tolist(), router.table.tolist())
        case Soft():
            return soft(rows, router.mixers(len(rows)))
        case GroupLimited():
            groups = router.num_groups, router.topk_groups, router.group_score
            return group_limited(rows, router.top_k, *groups, **_scoring(router))
    raise ValueError(f"there is no reference for {type(router).__name__}")


def _scoring(router: TokenChoice | GroupLimited) -> dict[str, Any]:
    """The scoring parameters, as the references take them."""
    scoring = router.scoring
    bias = None if scoring.bias is None else scoring.bias.tolist()
    return {
        "scoring": scoring.kind, "renormalize": scoring.renormalize, "route_scale": scoring.route_scale, "bias": bias
    }  # fmt: skip


def token_choice(
    scores: Scores,
    top_k: int,
    scoring: str = "softmax",
    renormalize: bool = True,
    route_scale: float = 1.0,
    capacity_factor: float | None = None,
    bias: Sequence[float] | None = None,
) -> list[Choice]:
    """Switch 2101.03961, GShard 2006.16668."""
    choices: list[Choice] = []
    for token, row in enumerate(scores):
        affinity = affinities(row, scoring)
        biased = [a + b for a, b in zip(affinity, bias or [0.0] * len(row), strict=True)]
        best = sorted(range(len(row)), key=lambda e: -biased[e])[:top_k]
        choices += weighted(token, best, affinity, renormalize, route_scale)
    if capacity_factor is None:
        return choices
    capacity = math.ceil(capacity_factor * top_k * len(scores) / len(scores[0]))
    kept: list[Choice] = []
    for expert in {e for _, e, _ in choices}:
        mine = sorted((c for c in choices if c[1] == expert), key=lambda c: (-c[2], c[0]))
        kept += mine[:capacity]
    return sorted(kept)


def expert_choice(scores: Scores, top_k: int) -> list[Choice]:
    """Zhou 2202.09368."""
    num_tokens, num_experts = len(scores), len(scores[0])
    probability = [affinities(row, "softmax") for row in scores]
    takes = min(num_tokens, max(1, math.floor(num_tokens * top_k / num_experts + 0.5)))
    choices = []
    for expert in range(num_experts):
        best = sorted(range(num_tokens), key=lambda t: -probability[t][expert])[:takes]
        choices += [(token, expert, probability[token][expert]) for token in best]
    return sorted(choices)


def dynamic(scores: Scores, top_p: float, max_experts: int) -> list[Choice]:
    """Huang 2403.07652."""
    choices = []
    for token, row in enumerate(scores):
        probability = affinities(row, "softmax")
        gathered = 0.0
        for expert in sorted(range(len(row)), key=lambda e: -probability[e])[:max_experts]:
            choices.append((token, expert, probability[expert]))
            gathered += probability[expert]
            if gathered > top_p:
                break
    return choices


def by_table(token_ids: Sequence[int], table: Sequence[Sequence[int]]) -> list[Choice]:
    """Roller 2106.04426, with the table as it was drawn."""
    return [(token, expert, 1 / len(table[i])) for token, i in enumerate(token_ids) for expert in table[i]]


def soft(scores: Scores, mixers: Tensor) -> SoftSlots:
    """Puigcerver 2308.00951, with Φ [E, E, S] as it was drawn; in float64."""
    s = torch.tensor(scores, dtype=torch.float64)
    logits = s[:, :, None] + torch.einsum("ti,iej->tej", s, mixers.double())
    power = torch.exp(logits - logits.amax())
    columns = power.flatten(1)
    return SoftSlots(columns / columns.sum(dim=0), columns / columns.sum(dim=1, keepdim=True))


def group_limited(
    scores: Scores,
    top_k: int,
    num_groups: int,
    topk_groups: int,
    group_score: str,
    scoring: str = "softmax",
    renormalize: bool = True,
    route_scale: float = 1.0,
    bias: Sequence[float] | None = None,
) -> list[Choice]:
    """DeepSeek-V2 2405.04434, V3 2412.19437."""
    choices: list[Choice] = []
    for token, row in enumerate(scores):
        affinity = affinities(row, scoring)
        biased = [a + b for a, b in zip(affinity, bias or [0.0] * len(row), strict=True)]
        size = len(row) // num_groups
        groups = [range(first, first + size) for first in range(0, len(row), size)]

        def worth(group: Sequence[int], biased: list[float] = biased) -> float:
            best = sorted((biased[e] for e in group), reverse=True)
            return sum(best[:2]) if group_score == "top2" else best[0]

        kept = sorted(groups, key=worth, reverse=True)[:topk_groups]
        best = sorted((e for group in kept for e in group), key=lambda e: -biased[e])[:top_k]
        choices += weighted(token, best, affinity, renormalize, route_scale)
    return choices


def balanced(scores: Scores, top_k: int, chosen: Sequence[tuple[int, int]]) -> list[Choice]:
    """BASE 2103.16716: the pairs (token, expert) ``chosen``, checked. Raises `Wrong` where they aren't balanced, or
    where another balanced assignment could be better by more than `GAP`."""
    experts: list[list[int]] = [[] for _ in scores]
    for token, expert in chosen:
        experts[token].append(expert)
    load = [sum(e in mine for mine in experts) for e in range(len(scores[0]))]
    if any(len(mine) != top_k or len(set(mine)) != top_k for mine in experts):
        raise Wrong(f"a token has not {top_k} distinct experts")
    if max(load) - min(load) > 1:
        raise Wrong(f"the loads go from {min(load)} to {max(load)}")
    worth = sum(scores[token][expert] for token, expert in chosen)
    best = most_worth(scores, top_k, prices_of(scores, experts, load))
    random = top_k * sum(map(sum, scores)) / len(load)
    if best - worth > GAP * (best - random) + 1e-6 * (1 + abs(best)):
        raise Wrong(f"the scores chosen sum to {worth:.6g}, and {best:.6g} may be possible")
    return [(token, expert, affinities(scores[token], "sigmoid")[expert]) for token, expert in sorted(chosen)]


def prices_of(scores: Scores, experts: Sequence[Sequence[int]], load: Sequence[int]) -> list[float]:
    """Prices [E] at which the tokens' ``experts`` are what they like best, where there are such prices.

    A token that has e and lacks f says p_e − p_f ≤ s_e − s_f; of two experts, the fuller isn't cheaper. Lowering prices
    until all that holds ends, unless a ring of swaps gains something (Bellman and Ford).
    """
    count = len(load)
    most = [[math.inf if load[e] >= load[f] else 0.0 for f in range(count)] for e in range(count)]
    for row, mine in zip(scores, experts, strict=True):
        for e, f in product(mine, set(range(count)).difference(mine)):
            most[e][f] = min(most[e][f], row[e] - row[f])
    price = [0.0] * count
    for _ in range(count):
        lower = [min(p, *(price[f] + most[e][f] for f in range(count))) for e, p in enumerate(price)]
        if lower == price:
            break
        price = lower
    return price


def most_worth(scores: Scores, top_k: int, price: Sequence[float]) -> float:
    """What no balanced assignment can exceed, whatever the prices (weak duality): all tokens take their k best at
    those prices, and get the prices back for as many places as there are, the dearest experts having one more."""
    floor, extras = divmod(top_k * len(scores), len(price))
    taken = (sum(sorted((s - p for s, p in zip(row, price, strict=True)), reverse=True)[:top_k]) for row in scores)
    return sum(taken) + floor * sum(price) + sum(sorted(price, reverse=True)[:extras])


def affinities(row: Sequence[float], scoring: str) -> list[float]:
    """softmax or sigmoid of one token's scores."""
    if scoring == "sigmoid":
        return [1 / (1 + math.exp(-s)) if s > -700 else 0.0 for s in row]
    top = max(row)
    power = [math.exp(s - top) for s in row]
    return [p / sum(power) for p in power]


def weighted(
    token: int, experts: Sequence[int], affinity: Sequence[float], renormalize: bool, route_scale: float
) -> list[Choice]:
    """One token's choices with their weights."""
    norm = sum(affinity[e] for e in experts) if renormalize else 1.0
    return [(token, e, affinity[e] / norm * route_scale) for e in experts]
