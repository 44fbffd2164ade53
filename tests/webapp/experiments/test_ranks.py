"""Experts and ranks on an experiment's page: who waits, who does most, what travels, and how far to trust it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench_worker.result import Exchange, Run
from tests.webapp.experiments import make, rows
from tests.webapp.experiments.rows import text_of
from webapp.experiments import page, ranks
from webapp.experiments.models import StageSeries
from webapp.ui import formatting

NODES = [0, 0, 1, 1]


def measured(nodes: list[int] = NODES, **changes: Any) -> Run:
    return make.on_ranks(make.result(make.experiment()).runs[0], nodes, **changes)


def columns_of(run: Run) -> ranks.Columns:
    assert run.steps is not None
    whole: dict[str, dict[int, list[float]]] = {name: {} for name in ranks.WHOLE}
    for rank in run.steps.ranks:
        found = {"idle_us": rank.idle_us, "assignments": rank.assignments}
        found |= {f"bytes.{domain}": count for domain, count in rank.bytes.items()}
        found |= {f"group_bytes.{domain}": count for domain, count in rank.group_bytes.items()}
        for name, values in found.items():
            whole[name][rank.rank] = [float(value) for value in values]
    return ranks.columns(run.steps.index, run.steps.layer_us, whole, len(run.steps.ranks))


def section(run: Run, place: int = 0) -> ranks.Ranks:
    assert run.steps is not None
    assert run.summary is not None
    assert run.exchange is not None
    stages = {
        stage: [rank.stages_us[stage][place] for rank in run.steps.ranks] for stage in run.steps.ranks[0].stages_us
    }
    return ranks.section(run.spec, run.summary, run.exchange, columns_of(run), place, stages)


def plain(words: str) -> str:
    return words.replace("\N{NO-BREAK SPACE}", " ")


def test_the_rank_that_waits_least_is_the_one_that_the_others_wait_for() -> None:
    """Waits of 300, 200, 100 and 0 µs: the three others wait 200 µs in the mean."""
    found = section(measured())
    words = "The others wait for rank 3: 200 µs of a layer's 435 µs in the mean; rank 0 longest, 300 µs."
    assert plain(found.waiting) == words
    assert found.stages == ["attention", "route", "permute", "dispatch", "experts", "combine", "other"]
    assert found.rows[1].stages_us == [10, 10, 10, 5, 200, 10, 10]
    assert [row.idle_us for row in found.rows] == [300, 200, 100, 0]


def test_ranks_that_end_together_wait_for_none() -> None:
    run = measured()
    assert run.steps is not None
    for rank in run.steps.ranks:
        rank.idle_us[:] = [1.0] * 5
    assert section(run).waiting == "The ranks end together: none waits for long."


def test_a_step_that_takes_no_time_has_nobody_who_waits() -> None:
    run = measured()
    assert run.steps is not None
    for rank in run.steps.ranks:
        rank.idle_us[:] = [0.0] * 5
    run.steps.layer_us[:] = [0.0] * 5
    found = section(run)
    assert found.waiting == "The ranks end together: none waits for long."
    assert [link.share for link in found.links] == [0, 0]


def test_the_load_of_a_rank_is_told_against_the_mean() -> None:
    """1, 2, 3 and 4 assignments in each of five steps."""
    found = section(measured())
    assert [(row.assignments, row.of_mean) for row in found.rows] == [(5, 0.4), (10, 0.8), (15, 1.2), (20, 1.6)]
    assert found.load["data"]["datasets"][0]["data"] == [0.4, 0.8, 1.2, 1.6]


def test_what_attention_groups_send_is_told_beside_the_experts_bytes() -> None:
    """Four ranks send 500 bytes in each of the steps."""
    run = measured()
    assert section(run).groups == ""
    assert run.steps is not None
    for rank in run.steps.ranks:
        rank.group_bytes["intra_node"] = [500] * len(run.steps.index)
        rank.group_bytes["inter_node"] = [0] * len(run.steps.index)
    sent = formatting.size(4 * 500 * len(run.steps.index))
    assert section(run).groups == (
        f"Beside that, the ranks of each attention group sent one another {sent} inside the node around the layers."
    )


def test_bytes_are_summed_by_domain() -> None:
    """A step: each rank keeps 3 kB; inside the nodes 1, 2, 1 and 1 kB; between them 2, 2, 3 and 3 kB."""
    found = section(measured())
    assert [(name, total) for name, _, total, _ in found.domains] == [
        ("local", 60_000), ("intra_node", 25_000), ("inter_node", 50_000),
    ]  # fmt: skip
    assert sum(share for *_, share in found.domains) == pytest.approx(1)
    assert found.rows[1].bytes == [15_000, 10_000, 10_000]


def test_the_matrix_tells_each_pair_against_an_even_share() -> None:
    found = section(measured())
    assert found.table[1] == [2000, 3000, 1000, 1000]
    assert found.between == "rank"
    # of 27 kB in 16 pairs, 1.69 kB is even: 3 kB is nearer to 2×, 2 kB and 1 kB·√2 to even, 1 kB nearer to ½
    assert found.matrix.levels[1].tolist() == [3, 4, 2, 2]
    assert "most from rank 0 to rank 0, 3.00 kB" in plain(found.matrix.label)


def test_many_ranks_are_told_by_their_nodes() -> None:
    found = section(measured([rank // 16 for rank in range(32)]))
    assert found.between == "node"
    assert len(found.table) == 2
    assert found.table[0][0] == 16 * 3000 + 15 * 2000 + (16 * 15 - 15) * 1000  # itself, to rank 0, the others
    assert np.sum(found.table) == np.sum(measured([0] * 32).exchange.dispatched_bytes)  # type: ignore[union-attr]


def test_of_too_many_ranks_the_busiest_are_drawn_and_all_stand_in_the_table() -> None:
    found = section(measured([rank // 8 for rank in range(128)], parallel={"redundant_experts": 64}))
    assert (found.drawn, len(found.rows), found.size) == (64, 128, "tall")
    assert found.timeline["data"]["labels"][-1] == "rank 127"
    assert found.matrix.levels.shape == (64, 64)
    assert "2 together" in found.matrix.caption


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("measured", ""),
        ("modelled", "measured compute, modelled network"),
        ("assumed", "measured compute, modelled network, assumed from datasheets"),
    ],
)
def test_the_origin_of_the_network_is_named(network: str, words: str) -> None:
    assert section(measured(network=network)).origin == words


def test_steps_with_the_most_and_the_least_waiting_are_one_click_away() -> None:
    """Three ranks wait one µs more each step, and a layer takes one µs more."""
    assert [(link.words, link.number) for link in section(measured()).links] == [
        ("Most waiting", 4),
        ("Least waiting", 0),
    ]
    columns = columns_of(measured())
    assert columns.idle_share[[0, 4]] == pytest.approx([600 / (4 * 435), 612 / (4 * 439)])
    assert [ranks.step_place(columns, asked) for asked in ("", "2", "77", "-1", "x", "9" * 99)] == [4, 2, 4, 4, 4, 4]


def test_a_placement_that_looks_at_no_load_is_judged_by_the_run_alone() -> None:
    found = section(measured()).placement
    assert found.figures == [("on this run", 1.0)]
    assert found.verdict == "It looks at no load, so any load judges it fairly."


@pytest.mark.parametrize("fitted_to", ["first pass", "recording"])
def test_a_placement_says_that_it_was_judged_on_what_it_was_fitted_to(fitted_to: str) -> None:
    run = measured(fitted_to=fitted_to, fitted_imbalance=1.25, parallel={"placement": "eplb"})
    found = section(run).placement
    assert found.policy == "eplb"
    assert found.figures == [(f"on the {fitted_to} that it was fitted to", 1.25), ("on this run", 1.0)]
    assert "other traffic will balance less well" in found.verdict


def test_a_placement_is_judged_on_load_that_it_has_not_seen_as_well() -> None:
    run = measured(fitted_to="first pass", fitted_imbalance=1.25, held_out_imbalance=1.5)
    found = section(run).placement
    assert found.figures[2] == ("fitted to the first half of that load, on its second half", 1.5)
    assert found.verdict.endswith("expect of other traffic what the half that it had not seen says.")


def test_experts_lie_in_the_order_of_their_ranks() -> None:
    exchange = Exchange(
        nodes=[0, 0], physical_to_logical=[[0, 1, 2, 3]], rank_of_physical=[1, 0, 1, 0], dispatched_bytes=[[0, 0]] * 2,
        fitted_to="nothing", network="modelled",
    )  # fmt: skip
    assert ranks.held(exchange).tolist() == [[1, 3], [0, 2]]


@pytest.mark.django_db
def test_the_page_of_a_run_on_several_ranks_has_all_of_it(signed_in: Any, member: Any) -> None:
    row = rows.on_ranks(member, NODES, parallel={"redundant_experts": 4})
    read = text_of(signed_in.get(f"{row.get_absolute_url()}?step=2"))
    assert "Experts and ranks" in read
    assert "≈: measured compute, modelled network." in read
    assert "Measured compute, modelled network. Nodes of 8 H200" in read
    assert "4 ranks on 2 nodes" in read
    assert "Who waits for whom step 2, one layer" in read
    assert "of a layer's 457 µs in the mean" in plain(read)  # attention 10, the layer 437, other 10
    assert "4 redundant experts" in read
    assert "on each rank" in read
    assert "between nodes" in read


@pytest.mark.django_db
def test_the_bars_of_all_ranks_end_together(member: Any) -> None:
    """What is done once a step is shared out among the executed layers."""
    run = rows.on_ranks(member, NODES).runs.first()
    run.scale["executed_layers"] = 4
    run.save()
    found = page.detail(run.experiment, page.Shown(step="0"))["ranks"]
    assert found.rows[0].stages_us[-1] == 2.5
    assert {sum(row.stages_us) + row.idle_us for row in found.rows} == {100 * 4 + 35 + 10 + 2.5}


@pytest.mark.django_db
def test_a_run_on_one_rank_has_no_such_section(signed_in: Any, member: Any) -> None:
    assert "Experts and ranks" not in text_of(signed_in.get(rows.done(member).get_absolute_url()))


@pytest.mark.django_db
def test_more_ranks_take_no_more_queries(member: Any, django_assert_num_queries: Any) -> None:
    few, many = rows.on_ranks(member, NODES), rows.on_ranks(member, [rank // 8 for rank in range(32)])
    for row in (few, many):
        with django_assert_num_queries(10):
            page.detail(row, page.Shown())
    assert StageSeries.objects.filter(run__experiment=many).count() > 32 * 10


@pytest.mark.django_db
def test_what_the_first_rank_waits_is_part_of_its_steps(member: Any) -> None:
    row = rows.on_ranks(member, NODES)
    run = row.runs.first()
    run.scale["counts"]["idle"] = 16
    run.save()
    labels = [dataset["label"] for dataset in page.detail(row, page.Shown())["timeline"].config["data"]["datasets"]]
    assert labels[-1] == "idle"


@pytest.mark.django_db
def test_what_waits_shows_the_ranks_that_it_asks_for(signed_in: Any, member: Any) -> None:
    parallel = {"mode": "virtual", "layout": {"tp": 2, "dp": 2}}
    base = {"model": "olmoe-1b-7b", "parallel": parallel, "kernels": {"attention": False}}
    several = rows.put(member, base=base, vary=None)
    assert "4 ranks: attention in 2 groups of 2" in text_of(signed_in.get(several.get_absolute_url()))
    assert "attention in" not in text_of(signed_in.get(rows.put(member).get_absolute_url()))
