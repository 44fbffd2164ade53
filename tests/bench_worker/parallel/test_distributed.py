"""Real ranks, a process each: they compute and count what ranks in one process do."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench_worker.parallel.step import bytes_by_domain
from tests.bench_worker.parallel.make import outputs, spec, step, virtual

ROOT = Path(__file__).resolve().parents[3]
#: Tokens by request: with two groups, request 1 alone is in the second; with four, two ranks get none.
UNEVEN = {0: 5, 2: 1, 4: 7, 1: 2, 6: 3}
STRATEGIES = ["token_choice", "dynamic", "hash", "group_limited", "expert_choice", "balanced", "soft"]
PLACED = [("contiguous", 0), ("round_robin", 0), ("eplb", 0), ("locality", 0), ("eplb", 8), ("contiguous", 4)]


def cases_of(config, ranks):
    """Every strategy, then every placement, then a rank without any token and experts in bfloat16."""
    tp = 2 if ranks == 4 else 1
    sizes = {"config": str(config), "tp": tp, "dp": ranks // tp, "nodes": 2, "tokens": UNEVEN}
    plain = {"placement": "eplb", "redundant_experts": 8}
    several = [{"routing": {"strategy": name}, "parallel": plain} for name in STRATEGIES]
    several += [{"parallel": {"placement": name, "redundant_experts": extra}} for name, extra in PLACED]
    several += [{"tokens": {1: 4}, "parallel": {}}, {"kernels": {"dtype": "bfloat16"}, "parallel": {}}]
    return [sizes | case for case in several]


@pytest.fixture(scope="module", params=[2, 4])
def computed(request, tiny_config, tmp_path_factory):
    """``(case, what each rank wrote)`` of every case."""
    ranks, folder = request.param, tmp_path_factory.mktemp("ranks")
    cases = cases_of(tiny_config, ranks)
    for case in cases:
        case["parallel"]["mode"] = "distributed"
    (folder / "cases.json").write_text(json.dumps(cases))
    program = [sys.executable, "-m", "tests.bench_worker.parallel.one_rank", str(folder)]
    started = [subprocess.Popen([*program, str(rank), str(ranks)], cwd=ROOT) for rank in range(ranks)]
    assert [one.wait(240) for one in started] == [0] * ranks
    wrote = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(ranks)]
    return list(zip(cases, zip(*wrote, strict=True), strict=True))


def test_they_compute_and_count_what_virtual_ranks_do(computed, tiny_config):
    for case, ranks in computed:
        more = {name: value for name, value in case.items() if name not in ("config", "tokens", "parallel")}
        variant = virtual(spec(tiny_config, **more, parallel={**case["parallel"], "mode": "virtual"}))
        inputs = step(variant.network, case["tokens"])
        done = variant.run(inputs)
        for rank, output in zip(ranks, outputs(variant, inputs), strict=True):
            assert rank["outputs"].shape == output.shape
            assert torch.allclose(rank["outputs"].float(), output.float(), atol=1e-5), case
            assert np.array_equal(rank["rows"], done.rows), case
            assert rank["computed"].tolist() == done.computed.tolist()
            assert np.array_equal(rank["assignments"], done.outcome.rows)
            nodes = variant.layout.node_of_rank()
            sent = [rows.sum(axis=0) * variant.row_bytes for rows in (rank["rows"], done.rows)]
            real, modelled = (bytes_by_domain(one, nodes) for one in sent)
            assert {name: count.tolist() for name, count in real.items()} == {
                name: count.tolist() for name, count in modelled.items()
            }


def test_each_rank_equals_its_own_reference(computed):
    for case, ranks in computed:
        tolerance = 1e-2 if "kernels" in case else 1e-5
        assert all(rank["check"] == ranks[0]["check"] <= tolerance for rank in ranks), case


def test_all_ranks_tell_the_same_timeline_in_which_nobody_is_ahead_of_the_span(computed):
    for _, ranks in computed:
        stages, idle = ranks[0]["timeline"]
        total = np.sum(list(stages.values()), axis=0) + idle
        assert total == pytest.approx(np.full(len(ranks), total[0]), rel=1e-6)
        assert all((rank["timeline"][1] == idle).all() for rank in ranks)
        assert all(rank["whole_us"] == ranks[0]["whole_us"] > 0 for rank in ranks)
