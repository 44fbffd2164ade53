"""Real ranks, a process each: they compute and count what ranks in one process do."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench_worker import reference
from bench_worker.parallel.layout import Layout
from bench_worker.parallel.step import bytes_by_domain
from tests.bench_worker.parallel.make import outputs, spec, step, streams, virtual

ROOT = Path(__file__).resolve().parents[3]
#: Tokens by request: with two groups, request 1 alone is in the second; with four, two ranks get none.
UNEVEN = {0: 5, 2: 1, 4: 7, 1: 2, 6: 3}
STRATEGIES = ["token_choice", "dynamic", "hash", "group_limited", "expert_choice", "balanced", "soft"]
PLACED = [("contiguous", 0), ("round_robin", 0), ("eplb", 0), ("locality", 0), ("eplb", 8), ("contiguous", 4)]


def cases_of(config, ranks):
    """Every strategy, then every placement, then a rank without any token, experts in bfloat16, and attention."""
    tp = 2 if ranks == 4 else 1
    sizes = {"config": str(config), "tp": tp, "dp": ranks // tp, "nodes": 2, "tokens": UNEVEN}
    plain = {"placement": "eplb", "redundant_experts": 8}
    several = [{"routing": {"strategy": name}, "parallel": plain} for name in STRATEGIES]
    several += [{"parallel": {"placement": name, "redundant_experts": extra}} for name, extra in PLACED]
    several += [{"tokens": {1: 4}, "parallel": {}}, {"kernels": {"dtype": "bfloat16"}, "parallel": {}}]
    attention = {"kernels": {"attention": True}, "parallel": {}}
    several += [attention, attention | {"tp": 1, "dp": ranks}, attention | {"tp": ranks, "dp": 1}]
    several += [attention | {"tokens": {1: 4}, "tp": 2, "dp": ranks // 2}]
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


def test_attention_that_a_group_divides_equals_that_of_one_rank(computed, tiny_config):
    attended = [(case, ranks) for case, ranks in computed if ranks[0]["stream"] is not None]
    assert {case["tp"] for case, _ in attended} >= {1, 2}
    for case, ranks in attended:
        one = virtual(spec(tiny_config, tp=1, dp=1, kernels=case["kernels"], parallel={"mode": "virtual"}))
        inputs = step(one.network, case["tokens"])
        (whole,) = streams(one, inputs)
        groups = Layout(case["tp"], case["dp"], 1).rows_of_groups(*inputs.layout.requests)
        for rank, found in enumerate(ranks):
            expected = whole[torch.from_numpy(groups[rank // case["tp"]])]
            assert found["stream"].shape == expected.shape
            if len(expected):
                assert reference.relative_error(found["stream"], expected.double()) < 1e-5, case


def test_collectives_of_groups_are_counted_alike(computed, tiny_config):
    for case, ranks in computed:
        if ranks[0]["stream"] is None:
            continue
        sizes = {name: case[name] for name in ("tp", "dp", "nodes", "kernels")}
        variant = virtual(spec(tiny_config, **sizes, parallel={"mode": "virtual"}))
        done = variant.run(step(variant.network, case["tokens"]))
        assert set(done.timeline.stages_us) == set(ranks[0]["timeline"][0])
        if case["tp"] == 1:
            assert all(rank["group_bytes"] is done.group_bytes is None for rank in ranks)
            continue
        assert all(np.array_equal(rank["group_bytes"], done.group_bytes) for rank in ranks)
        assert done.group_bytes.any()
        assert "attention.all_reduce" in done.timeline.stages_us


def test_each_rank_equals_its_own_reference(computed):
    for case, ranks in computed:
        tolerance = 1e-2 if "dtype" in case.get("kernels", {}) else 1e-5
        assert all(rank["check"] == ranks[0]["check"] <= tolerance for rank in ranks), case


def test_all_ranks_tell_the_same_timeline_in_which_nobody_is_ahead_of_the_span(computed):
    for _, ranks in computed:
        stages, idle = ranks[0]["timeline"]
        total = np.sum(list(stages.values()), axis=0) + idle
        assert total == pytest.approx(np.full(len(ranks), total[0]), rel=1e-6)
        assert all((rank["timeline"][1] == idle).all() for rank in ranks)
        assert all(rank["whole_us"] == ranks[0]["whole_us"] > 0 for rank in ranks)
