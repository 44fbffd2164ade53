"""Balanced assignment in milliseconds: experts raise and lower prices until every token, taking what is best for it at
those prices, leaves all experts about equally full; what is still over is moved along the cheapest chains.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token.

Prices are the dual variables of the transportation problem. `Market` finds them nearly right by smoothing; `repair`
makes the assignment exactly balanced, and keeps it optimal while it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bench_worker.routing.solvers.finite import finite
from bench_worker.routing.solvers.market import Market
from bench_worker.routing.solvers.repair import repair

#: Levels of smoothing, in standard deviations of the scores. The first need no precision: they look at a sample.
SAMPLE_LEVELS = (1.0, 1 / 2, 1 / 4)
LEVELS = (1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128)
SAMPLE = 512
#: While more units than this an expert are over, levels go on: some scores are equal, or dwarf the rest.
OVER = 1.5
#: Height of the pattern that separates equal scores, in standard deviations of the scores. No level is finer.
TIE_BREAK = 1e-5
#: Scores up to which one thread does all: there are some hundred operations, each shorter than a busy machine takes to
#: wake a second thread.
ONE_THREAD = 2**20


def solve(scores: Tensor, top_k: int) -> Tensor:
    """Experts int64 [T, k], distinct in a row, for ``scores`` [T, E]: loads are floor or ceil of k·T/E, the sum of the
    chosen scores at or next to the optimum."""
    num_tokens, num_experts = scores.shape
    if top_k == num_experts or num_tokens <= 1:  # at one token every choice is balanced
        return scores.topk(top_k).indices
    with _threads_for(scores):
        return _solve(scores, top_k)


@contextmanager
def _threads_for(scores: Tensor) -> Iterator[None]:
    threads = torch.get_num_threads()
    if threads == 1 or scores.numel() > ONE_THREAD:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _solve(scores: Tensor, top_k: int) -> Tensor:
    num_tokens, num_experts = scores.shape
    values, spread = finite(scores)
    values.add_(_pattern(scores), alpha=TIE_BREAK * spread)

    price = values.new_zeros(num_experts)
    stride = max(1, num_tokens // max(SAMPLE, 2 * num_experts))
    sample = Market(values[::stride].contiguous(), top_k, price)
    for level in SAMPLE_LEVELS:
        sample.settle(spread * level)
    market = Market(values, top_k, sample.price)
    for level in LEVELS:
        market.settle(spread * level)
    best, order = market.demand()
    while _units_over(order[:, :top_k], num_experts) > OVER * num_experts and level > TIE_BREAK:
        level /= 2
        market.settle(spread * level)
        best, order = market.demand()
    return repair(values, market.price, best, order, same=2 * TIE_BREAK * spread).to(scores.device)


def _pattern(scores: Tensor) -> Tensor:
    """Numbers in [0, 1) for each token and expert, even in every row and column: a Kronecker sequence. Equal scores
    must not all fall to the same experts."""
    token, expert = (torch.arange(size, device=scores.device, dtype=torch.float64) for size in scores.shape)
    return ((token * 0.6180339887498949)[:, None] + expert * 0.7548776662466927).frac_().float()


def _units_over(experts: Tensor, num_experts: int) -> float:
    """Assignments that have to move for all experts to be equally full."""
    load = torch.bincount(experts.flatten(), minlength=num_experts)
    return float((load - experts.numel() / num_experts).clamp(min=0).sum())
