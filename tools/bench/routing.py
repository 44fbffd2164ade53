"""What selecting experts costs, and how good the fast balanced solver is. Quoted in docs/routing.md.

Shapes: ``T`` = 2048 tokens, ``E`` = 128 experts, ``k`` = 8 experts a token, unless a table says otherwise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from bench_worker.routing import build
from bench_worker.routing.reference import most_worth, prices_of
from bench_worker.routing.solvers import auction
from bench_worker.workload.plackett_luce import fit_weights, inclusion
from bench_worker.workload.scores import gumbel_scores, popularity

TOKENS, EXPERTS, TOP_K = 2048, 128, 8
REPEATS = 60


def section() -> None:
    selection_table()
    balanced_table()
    load_table()


def selection_table() -> None:
    """Every strategy in turn on the same scores, beside a plain softmax and top-k."""
    generator = torch.Generator().manual_seed(0)
    scores = [torch.randn(TOKENS, EXPERTS, generator=generator) for _ in range(7)]
    ids = torch.randint(150_000, (TOKENS,), generator=generator)
    v3 = {"scoring": "sigmoid", "bias": [0.0] * EXPERTS, "route_scale": 2.5}
    routers = {
        "token_choice": build("token_choice", EXPERTS, top_k=TOP_K),
        "token_choice, sigmoid and bias": build("token_choice", EXPERTS, top_k=TOP_K, **v3),
        "group_limited": build("group_limited", EXPERTS, top_k=TOP_K),
        "group_limited, as DeepSeek-V3": build("group_limited", EXPERTS, top_k=TOP_K, **v3),
        "dynamic": build("dynamic", EXPERTS, top_k=TOP_K),
        "expert_choice": build("expert_choice", EXPERTS, top_k=TOP_K),
        "hash": build("hash", EXPERTS, top_k=TOP_K),
        "balanced, auction": build("balanced", EXPERTS, top_k=TOP_K),
        "soft": build("soft", EXPERTS, top_k=TOP_K),
    }
    calls: dict[str, Callable[[Tensor], object]] = {"softmax and top-k": lambda s: s.softmax(dim=-1).topk(TOP_K)}
    calls |= {name: partial(router.select, token_ids=ids) for name, router in routers.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(REPEATS + 3):
        for name, call in calls.items():
            if name != "soft" or turn % 10 == 0:  # a matrix of tokens and slots: it takes long
                times[name].append(milliseconds(call, scores[turn % len(scores)]))
    plain = times["softmax and top-k"][3:]
    print(f"route.select, {TOKENS} tokens, {EXPERTS} experts, top {TOP_K}, beside a plain softmax and top-k")
    print(f"{'':34}{'median ms':>12}{'ratio':>9}{'fastest ms':>13}{'ratio':>9}{'repeats':>10}")
    for name, took in times.items():
        took = took[3:] if len(took) > 10 else took
        middle, fastest = statistics.median(took), min(took)
        print(
            f"{name:34}{middle:>12.3f}{middle / statistics.median(plain):>9.2f}"
            f"{fastest:>13.3f}{fastest / min(plain):>9.2f}{len(took):>10}"
        )
    print()


def families() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    few = [torch.randn(*shape, generator=generator) for shape in ((TOKENS, 8), (8, EXPERTS))]
    return {
        "Gaussian": torch.randn(TOKENS, EXPERTS, generator=generator),
        "zipf, skew 1": gumbel_scores(popularity("zipf", EXPERTS, 1.0, seed=0), TOKENS, generator),
        "rank 8": few[0] @ few[1],
    }


def balanced_table() -> None:
    """The auction beside scipy's assignment at k = 1, in turn; at k = 8 beside what no assignment can exceed."""
    print(f"balanced: auction beside scipy's exact assignment, {TOKENS} tokens, {EXPERTS} experts; fastest of each")
    heads = ("exact k=1 ms", "auction ms", "ratio", "gap", "auction k=8 ms", "gap at most")
    print(f"{'scores':16}" + "".join(f"{head:>16}" for head in heads))
    for name, scores in families().items():
        columns = np.tile(scores.double().numpy(), (1, TOKENS // EXPERTS))
        exact_ms, one_ms, eight_ms = [], [], []
        for _ in range(3):
            exact_ms.append(milliseconds(lambda c: linear_sum_assignment(c, maximize=True), columns))
            for _ in range(5):
                one_ms.append(milliseconds(lambda s: auction.solve(s, 1), scores))
                eight_ms.append(milliseconds(lambda s: auction.solve(s, TOP_K), scores))
        token, place = linear_sum_assignment(columns, maximize=True)
        print(
            f"{name:16}{min(exact_ms):>16.0f}{min(one_ms):>16.1f}{min(exact_ms) / min(one_ms):>16.1f}"
            f"{gap(scores, 1, columns[token, place].sum()):>16.1e}{min(eight_ms):>16.1f}"
            f"{gap(scores, TOP_K, bound(scores, TOP_K)):>16.1e}"
        )
    print()


def gap(scores: Tensor, top_k: int, best: float) -> float:
    """What the auction leaves of ``best``, as a share of what that has over a random balanced assignment."""
    reached = float(scores.double().gather(1, auction.solve(scores, top_k)).sum())
    average = top_k * float(scores.double().mean(dim=1).sum())
    return max(0.0, best - reached) / (best - average)


def bound(scores: Tensor, top_k: int) -> float:
    """What no balanced assignment can exceed, by prices that fit the auction's."""
    experts = auction.solve(scores, top_k)
    load = torch.bincount(experts.flatten(), minlength=EXPERTS).tolist()
    rows = scores.double().tolist()
    return most_worth(rows, top_k, prices_of(rows, experts.tolist(), load))


def load_table() -> None:
    """Fitting router scores to a load after top-k."""
    print("fitted expert load (weights of a Plackett-Luce sample)")
    print(f"{'experts':>8}{'top k':>8}{'fit ms':>10}{'largest error of a share':>27}")
    for experts, top_k in ((64, 8), (128, 8), (256, 8), (512, 10)):
        share = popularity("zipf", experts, 0.6, seed=0).numpy()
        took = min(milliseconds(partial(fit_weights, top_k=top_k), share) for _ in range(3))
        error = np.abs(inclusion(fit_weights(share, top_k), top_k) / (top_k * share) - 1).max()
        print(f"{experts:>8}{top_k:>8}{took:>10.1f}{error:>27.1e}")
    print()


def milliseconds(call: Callable[[Any], object], given: Any) -> float:
    start = time.perf_counter_ns()
    call(given)
    return (time.perf_counter_ns() - start) / 1e6
