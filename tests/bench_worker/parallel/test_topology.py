from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.parallel.topology import (
    DEFAULT,
    DOMAINS,
    Table,
    Topology,
    TopologyError,
    Wire,
    builtin,
    domains,
    load_topology,
    parse,
)

OWN = """
[topologies.ours]
description = "Two racks"
intra_node = "pcie5"
inter_node = "lan"

[paths.lan]
origin = "modelled"
source = "our own all-to-all"
alpha_us = 20
gb_per_s = 10
"""


def wire(alpha_us: float, gb_per_s: float, **more) -> Wire:
    return Wire(origin="assumed", source="made up", alpha_us=alpha_us, gb_per_s=gb_per_s, **more)


def topology(**paths: Wire) -> Topology:
    return Topology(name="made", description="made up", paths=paths)


def slow_exchange(topology: Topology, sent: np.ndarray, nodes: list[int]) -> list[float]:
    """Rank by rank, for wires with a start-up time and a rate of their own."""
    times = []
    for rank in range(len(nodes)):
        time = 0.0
        for domain, path in topology.paths.items():
            others = [
                other
                for other in range(len(nodes))
                if (other == rank) == (domain == "local")
                and (other == rank or (nodes[other] == nodes[rank]) == (domain == "intra_node"))
            ]
            busy = max(sum(sent[rank, o] for o in others), sum(sent[o, rank] for o in others))
            if busy:
                time = max(time, path.alpha_us + busy / path.gb_per_s / 1000)
        times.append(time)
    return times


def test_a_rank_is_as_long_busy_as_its_busiest_domain():
    """By hand. Rank 0 sends 4 MB inside its node at 100 GB/s (2 + 40 µs) and 1 MB outside at 10 GB/s (5 + 100 µs);
    rank 1 only receives the 4 MB; rank 2 receives 1 MB from outside; rank 3 does nothing."""
    sent = np.zeros((4, 4))
    sent[0, 1], sent[0, 2] = 4e6, 1e6
    made = topology(intra_node=wire(2, 100), inter_node=wire(5, 10))
    assert made.exchange_us(sent, np.array([0, 0, 1, 1])).tolist() == [105.0, 42.0, 105.0, 0.0]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.booleans())
def test_the_time_of_all_ranks_at_once_is_that_of_each_by_itself(nodes: list[int], seed: int, local: bool):
    random = np.random.default_rng(seed)
    sent = random.integers(0, 10**7, (len(nodes), len(nodes))) * random.integers(0, 2, (len(nodes), len(nodes)))
    paths = {"intra_node": wire(3, 200), "inter_node": wire(11, 25)} | ({"local": wire(0, 2000)} if local else {})
    made = topology(**paths)
    assert made.exchange_us(sent, np.array(nodes)) == pytest.approx(slow_exchange(made, sent, nodes))


def test_layers_are_exchanged_at_once():
    sent = np.random.default_rng(0).random((3, 2, 8, 8)) * 1e6
    nodes = np.arange(8) // 4
    together = load_topology().exchange_us(sent, nodes)
    assert together.shape == (3, 2, 8)
    assert together[2, 1] == pytest.approx(load_topology().exchange_us(sent[2, 1], nodes))


def test_ranks_of_a_node_share_its_one_adapter():
    sent = np.zeros((4, 4))
    sent[0, 2] = sent[1, 3] = 1e6  # 2 MB leave node 0 through one port of 10 GB/s: 200 µs
    made = topology(inter_node=wire(5, 10, shared_by_node=True))
    assert made.exchange_us(sent, np.array([0, 0, 1, 1])).tolist() == [205.0] * 4


def test_rows_that_stay_cost_nothing_where_the_topology_says_nothing_of_them():
    assert topology(intra_node=wire(2, 100)).exchange_us(np.diag([1e6, 1e6]), np.zeros(2)).tolist() == [0.0, 0.0]


def test_a_table_is_interpolated_in_log_time_over_log_size():
    table = Table(ranks=2, bytes=[100, 10_000], us=[4, 16])
    sizes = np.array([1.0, 100, 1000, 10_000, 30_000])
    assert table.time_us(sizes) == pytest.approx([4, 4, 8, 16, 48])  # flat below; in proportion to the bytes above


def test_the_table_is_that_of_enough_ranks_or_of_the_most_and_of_its_direction():
    tables = (
        Table(ranks=2, bytes=[1, 2], us=[2, 2]),
        Table(ranks=8, direction="dispatch", bytes=[1, 2], us=[8, 8]),
        Table(ranks=8, direction="combine", bytes=[1, 2], us=[9, 9]),
    )
    made = Wire(origin="modelled", source="made up", tables=tables)
    one = np.array(1.0)
    assert [float(made.time_us(one, ranks, "dispatch")) for ranks in (2, 3, 8, 16)] == pytest.approx([2, 8, 8, 8])
    assert made.time_us(one, 8, "combine") == pytest.approx(9)


def test_bytes_over_a_domain_that_is_missing_are_an_error_and_others_are_not():
    made = topology(intra_node=wire(1, 1))
    nodes = np.array([0, 1])
    assert made.exchange_us(np.eye(2), nodes).tolist() == [0, 0]
    with pytest.raises(TopologyError) as error:
        made.exchange_us(np.ones((2, 2)), nodes)
    assert str(error.value) == "'made' has no path inter_node, which this layout uses; it has intra_node"
    with pytest.raises(TopologyError, match="no path inter_node"):
        made.require(["local", "intra_node", "inter_node"])
    made.require(["local", "intra_node"])


def test_a_matrix_of_the_wrong_size_is_refused():
    with pytest.raises(ValueError, match=r"sent: has the shape \[2, 3\]; it must end in \[2, 2\]"):
        load_topology().exchange_us(np.ones((2, 3)), np.array([0, 0]))


def test_every_pair_of_ranks_is_in_one_domain():
    masks = domains(np.array([0, 0, 1]))
    assert list(masks) == list(DOMAINS)
    assert sum(mask.astype(int) for mask in masks.values()).tolist() == [[1] * 3] * 3
    assert masks["intra_node"].tolist() == [[False, True, False], [True, False, False], [False, False, False]]


def test_a_time_is_assumed_where_any_of_its_paths_is():
    h200 = load_topology("h200-nccl")
    assert h200.origin(["local"]) == h200.origin(["local", "intra_node"], 8) == "modelled"
    assert h200.origin(["intra_node", "inter_node"]) == "assumed"


def test_more_ranks_in_a_node_than_were_measured_are_assumed_and_say_so():
    h200 = load_topology("h200-nccl")
    assert h200.origin(["intra_node"], 16) == "assumed"
    [line] = h200.sources(["local", "intra_node"], 16)
    assert line.startswith("intra_node: assumed, NCCL 2.29.2")
    assert line.endswith("measured among 8 ranks, used for 16")


def test_each_domain_in_use_names_its_source():
    inside, between = load_topology("h200-nccl").sources(["intra_node", "inter_node"])
    assert inside.startswith("intra_node: modelled, NCCL 2.29.2 over NVLink, one node of 8 H200")
    assert between.startswith("inter_node: assumed, an NDR port of 400 Gbit/s a GPU")


@pytest.mark.parametrize("made", builtin().values(), ids=lambda made: made.name)
def test_every_topology_that_comes_along_knows_both_wires(made: Topology):
    assert set(made.paths) == {"intra_node", "inter_node"}
    for path in made.paths.values():
        assert (path.origin == "modelled") == bool(path.tables)
        for table in path.tables:
            assert (np.diff(table.us) >= 0).all()


def test_without_a_name_it_is_the_default():
    assert load_topology() is load_topology(DEFAULT)


def test_the_model_tells_measured_rows_of_nccl():
    """All-to-all of 64 MiB of int8 among 8 GPUs took 217.47 µs; each sends 7/8 of it to others."""
    sent = (np.ones((8, 8)) - np.eye(8)) * 2**26 / 8
    assert load_topology().exchange_us(sent, np.zeros(8)) == pytest.approx([217.47] * 8, rel=0.03)


def test_a_team_writes_its_own_with_paths_of_its_own_and_built_in_ones(tmp_path: Path):
    file = tmp_path / "ours.toml"
    file.write_text(OWN)
    ours = load_topology(str(file))
    assert (ours.name, ours.description, ours.paths["inter_node"].gb_per_s) == ("ours", "Two racks", 10)
    assert ours.paths["intra_node"] == load_topology("pcie5-infiniband-200g").paths["intra_node"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "own.toml is not TOML: "),
        ("[cables]", "own.toml: 'cables' is not one of the tables paths, topologies"),
        ("paths = 3", "own.toml: 'paths' is not one of the tables paths, topologies"),
        ("[topologies.x]\ninter_node = 'pcie5'", "own.toml: topologies.x.description: is missing and has no default"),
        ("[topologies.x]\ndescription = 'x'", "own.toml: topologies.x names no path; it may have local, intra_node"),
        (
            "[topologies.x]\ndescription = 'x'\nintra_node = 'pci5'",
            "own.toml: topologies.x.intra_node: 'pci5' is not one of ",
        ),
        (
            OWN.replace("gb_per_s = 10", ""),
            "own.toml: paths.lan.gb_per_s: a path has either tables, or both alpha_us and gb_per_s",
        ),
        (OWN.replace("= 10", "= 0"), "own.toml: paths.lan.gb_per_s: 0 is not allowed; it must be above 0"),
        (OWN.replace("gb_per_s", "gbps"), "own.toml: paths.lan.gbps: there is no such field; "),
        (
            OWN.replace("modelled", "measured"),
            "own.toml: paths.lan.origin: 'measured' is not one of modelled, assumed",
        ),
        (
            OWN + "tables = [{ranks = 2, bytes = [1, 2], us = [1, 2]}]",
            "own.toml: paths.lan.gb_per_s: a path has either tables, or both",
        ),
        (
            "[paths.p]\norigin = 'modelled'\nsource = 's'\ntables = [{ranks = 2, bytes = [2, 1], us = [1, 2]}]",
            "own.toml: paths.p.tables.bytes: [2.0, 1.0] do not ascend",
        ),
        (
            "[paths.p]\norigin = 'modelled'\nsource = 's'\ntables = [{ranks = 2, bytes = [1, 2], us = [1, 2, 3]}]",
            "own.toml: paths.p.tables.us: 3 times stand beside 2 bytes; there must be as many of both",
        ),
        (
            "[paths.p]\norigin = 'modelled'\nsource = 's'\n"
            "tables = [{ranks = 2, direction = 'combine', bytes = [1, 2], us = [1, 2]}]",
            "own.toml: paths.p.tables: for dispatch there are tables for no ranks; one for each number is needed",
        ),
        (
            "[paths.p]\norigin = 'modelled'\nsource = 's'\n"
            "tables = [{ranks = 2, bytes = [1, 2], us = [1, 2]}, {ranks = 2, bytes = [1, 2], us = [1, 2]}]",
            "own.toml: paths.p.tables: for dispatch there are tables for [2, 2] ranks; one for each number is needed",
        ),
    ],
)
def test_a_file_that_is_no_topology_says_where(text: str, message: str):
    with pytest.raises(TopologyError) as error:
        parse(text.encode(), "own.toml", load_topology("pcie5-infiniband-200g").paths)
    assert str(error.value).startswith(message)


def test_a_file_must_hold_one_topology(tmp_path: Path):
    file = tmp_path / "none.toml"
    file.write_text("")
    with pytest.raises(TopologyError, match="holds 0 topologies; a file of your own holds one"):
        load_topology(str(file))


def test_a_file_too_large_is_not_read_to_its_end(tmp_path: Path):
    file = tmp_path / "large.toml"
    file.write_text("#" * 1_000_001)
    with pytest.raises(TopologyError, match="is larger than 1,000,000 bytes"):
        load_topology(str(file))


def test_names_and_files_that_are_not_there_are_refused(tmp_path: Path):
    with pytest.raises(TopologyError, match=r"'h200-ncl' is not one of .* \(did you mean h200-nccl\?\)"):
        load_topology("h200-ncl")
    with pytest.raises(TopologyError, match=r"gone\.toml can't be read: No such file"):
        load_topology(str(tmp_path / "gone.toml"))
    with pytest.raises(TopologyError, match="is a file path; file paths are for the command line only"):
        load_topology("./own.toml", allow_paths=False)
