"""The optimum, by scipy: a linear assignment for k = 1, a linear program for k above 1.

Both run on the host, in float64, and take seconds to minutes where ``auction`` takes milliseconds.

Shapes: ``T`` tokens, ``E`` experts, ``k`` experts a token.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import csr_array, eye_array, kron, vstack
from torch import Tensor

from bench_worker.routing.solvers.finite import finite


def solve(scores: Tensor, top_k: int) -> Tensor:
    """Experts int64 [T, k] with the largest possible sum of ``scores`` [T, E], loads floor or ceil of k·T/E."""
    values, _ = finite(scores.double().cpu())
    choose = _assignment if top_k == 1 else _program
    return torch.from_numpy(choose(values.numpy(), top_k)).to(scores.device)


def _assignment(scores: np.ndarray, top_k: int) -> np.ndarray:
    """k = 1. Column e stands ceil(T/E) times, for the places of expert e. Where E does not divide T the last place of
    each is an extra, and E·ceil(T/E) − T idle rows fill the extras that no token may take: on any other place they cost
    more than there is to win, so every expert keeps its floor."""
    num_tokens, num_experts = scores.shape
    floor, extras = divmod(num_tokens, num_experts)
    places = floor + (extras > 0)
    if not extras:
        columns = np.tile(scores, (1, places))
    else:
        idle = np.full((num_experts - extras, num_experts * places), num_tokens * (scores.min() - scores.max() - 1))
        idle[:, -num_experts:] = 0
        columns = np.vstack([np.tile(scores, (1, places)), idle])
    _, chosen = linear_sum_assignment(columns, maximize=True)
    return chosen[:num_tokens, None] % num_experts


def _program(scores: np.ndarray, top_k: int) -> np.ndarray:
    """k > 1. max Σ s·x with 0 ≤ x ≤ 1, rows summing to k and columns to floor or ceil of k·T/E. The constraint matrix
    is totally unimodular, so a vertex, which the simplex method returns, is an assignment. Tiled columns won't do here:
    they put a token on one expert twice."""
    num_tokens, num_experts = scores.shape
    floor, extras = divmod(top_k * num_tokens, num_experts)
    by_token = kron(eye_array(num_tokens), np.ones((1, num_experts)))
    by_expert = kron(np.ones((1, num_tokens)), eye_array(num_experts))
    low = np.repeat([top_k, floor], [num_tokens, num_experts])
    high = np.repeat([top_k, floor + (extras > 0)], [num_tokens, num_experts])
    sums = LinearConstraint(csr_array(vstack([by_token, by_expert])), low, high)
    found = milp(-scores.ravel(), constraints=sums, bounds=Bounds(0, 1))
    assert found.success, f"the program always has a solution, and HiGHS says: {found.message}"
    taken = found.x.reshape(num_tokens, num_experts)
    assert np.abs(taken - taken.round()).max(initial=0) < 1e-6, "a vertex is an assignment"
    return np.nonzero(taken > 0.5)[1].reshape(num_tokens, top_k)
