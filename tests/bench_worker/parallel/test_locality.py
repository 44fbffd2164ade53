from __future__ import annotations

from itertools import combinations

import pytest

from bench_worker.parallel.locality import meetings


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 16])
def test_every_rank_meets_every_other_once_and_no_rank_twice_in_a_round(ranks: int):
    met = []
    for a, b in meetings(ranks):
        assert len({*a.tolist(), *b.tolist()}) == 2 * len(a)
        met += [tuple(sorted(pair)) for pair in zip(a.tolist(), b.tolist(), strict=True)]
    assert sorted(met) == list(combinations(range(ranks), 2))
