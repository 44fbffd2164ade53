"""Derive `bench_worker/parallel/topologies.toml` from measured all-to-alls and print how close it is.

    python -m tools.derive_topologies FOLDER

FOLDER holds ``aic_h200_nccl.csv``, ``aic_h200_deepep_ll.csv`` and ``aic_h200_deepep_normal.csv``, rows measured on one
node of H200, published in https://github.com/ai-dynamo/aiconfigurator (Apache-2.0). Sizes are bytes that a rank sends
to **others** in an even all-to-all, of which all but 1 / ranks of its message is.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import hypergeom

from bench_worker.parallel.network_fit import fit_table, held_out_errors, to_toml
from bench_worker.parallel.topology import FILE, Topology, Wire

HEADER = """\
# Networks between ranks. Written by tools/derive_topologies.py; see docs/topology.md.
# Tables: µs of an even all-to-all by the bytes that a rank sends to others, from rows measured on one node of H200,
# published in https://github.com/ai-dynamo/aiconfigurator (Apache-2.0). Paths without tables are assumed.

"""

#: GPUs of the node on which the rows of DeepEP were measured.
DEEPEP_RANKS = 8
SMS = (4, 8, 12, 16, 20, 24)
BYTES = {"half": 2, "int8": 1}

START = "its start-up time is a guess"
#: Paths without measured rows: rates from datasheets, in 10⁹ bytes a second each way.
ASSUMED = {
    "pcie5": (10, 63.0, False, "PCI Express 5.0, 16 lanes at 32 GT/s, 128b/130b, as its specification says"),
    "pcie4": (10, 31.5, False, "PCI Express 4.0, 16 lanes at 16 GT/s, 128b/130b, as its specification says"),
    "infiniband-400g": (15, 50.0, False, "an NDR port of 400 Gbit/s a GPU, datasheet of NVIDIA ConnectX-7"),
    "infiniband-200g": (15, 25.0, False, "an HDR port of 200 Gbit/s a GPU, datasheet of NVIDIA ConnectX-6"),
    "ethernet-100g": (50, 12.5, True, "one port of 100 Gbit/s a node, IEEE 802.3"),
    "ethernet-25g": (50, 3.125, True, "one port of 25 Gbit/s a node, IEEE 802.3"),
}


class Rows(NamedTuple):
    """Measured rows of one table: the path's name, what was measured, among how many ranks, bytes [N] and µs [N]."""

    path: str
    ranks: int
    direction: str | None
    sent: np.ndarray
    us: np.ndarray


def nccl(rows: list[dict[str, str]]) -> Iterator[Rows]:
    """All-to-all by number of GPUs. ``message_size`` counts **elements** of a rank's whole buffer, ``latency`` ms."""
    found = [row for row in rows if row["op_name"] == "alltoall"]
    for ranks in sorted({int(row["num_gpus"]) for row in found}):
        of = [row for row in found if int(row["num_gpus"]) == ranks]
        sent = [int(row["message_size"]) * BYTES[row["nccl_dtype"]] * (ranks - 1) / ranks for row in of]
        yield Rows("nvlink-nccl", ranks, None, np.array(sent), 1e3 * np.array([float(row["latency"]) for row in of]))


def low_latency(rows: list[dict[str, str]]) -> Iterator[Rows]:
    """One message for every assignment: dispatch in fp8 with a float32 scale for each 128 numbers and 16 bytes of
    header, combine in bfloat16 (as the file's own bandwidths count them)."""
    for direction, width, header in (("dispatch", 1 + 4 / 128, 16), ("combine", 2, 0)):
        sent = [
            int(row["num_token"]) * int(row["num_topk"]) * (int(row["hidden_size"]) * width + header) for row in rows
        ]
        us = [float(row[f"{direction}_avg_t_us"]) for row in rows]
        yield Rows("nvlink-deepep-ll", DEEPEP_RANKS, direction, _to_others(sent), np.array(us))


def normal(rows: list[dict[str, str]]) -> Iterator[Rows]:
    """A token goes once to each rank that has any of its experts, in bfloat16. Which ranks those are isn't in the file;
    their number is what k distinct experts drawn at random touch."""
    for sms in SMS:
        of = [row for row in rows if int(row["dispatch_sms"]) == sms]
        sent = [
            int(row["num_token"]) * touched(int(row["num_experts"]), int(row["num_topk"])) * 2 * int(row["hidden_size"])
            for row in of
        ]
        for direction in ("dispatch", "combine"):
            us = [float(row[f"{direction}_transmit_us"]) for row in of]
            yield Rows(f"nvlink-deepep-{sms}sm", DEEPEP_RANKS, direction, _to_others(sent), np.array(us))


def touched(experts: int, top_k: int, ranks: int = DEEPEP_RANKS) -> float:
    """Ranks that hold any of ``top_k`` distinct experts, drawn at random of ``experts``: R · (1 − C(E − E/R, k) /
    C(E, k))."""
    return ranks * (1 - float(hypergeom.pmf(0, experts, experts // ranks, top_k)))


def wires(measured: list[Rows]) -> dict[str, Wire]:
    """Every path by name: the measured ones with their tables, then the assumed ones."""
    source = {
        "nvlink-nccl": "NCCL 2.29.2 over NVLink, one node of 8 H200",
        "nvlink-deepep-ll": "DeepEP's low-latency kernels over NVLink, one node of 8 H200",
        **{f"nvlink-deepep-{sms}sm": f"DeepEP's throughput kernels on {sms} SMs, one node of 8 H200" for sms in SMS},
    }
    paths = {}
    for name, text in source.items():
        tables = tuple(fit_table(r.sent, r.us, r.ranks, r.direction) for r in measured if r.path == name)
        paths[name] = Wire(origin="modelled", source=f"{text} (ai-dynamo/aiconfigurator)", tables=tables)
    for name, (alpha, rate, shared, text) in ASSUMED.items():
        paths[name] = Wire(
            origin="assumed", source=f"{text}; {START}", alpha_us=alpha, gb_per_s=rate, shared_by_node=shared
        )
    return paths


def topologies(paths: dict[str, Wire]) -> list[Topology]:
    """Networks that teams have or think of buying, from ``paths``."""
    made = {
        "h200-nccl": ("Nodes of 8 H200, NCCL, InfiniBand 400G a GPU", "nvlink-nccl", "infiniband-400g"),
        "h200-deepep-ll": (
            "Nodes of 8 H200, DeepEP low latency, InfiniBand 400G a GPU", "nvlink-deepep-ll", "infiniband-400g",
        ),
        **{
            f"h200-deepep-{sms}sm": (
                f"Nodes of 8 H200, DeepEP throughput on {sms} SMs, InfiniBand 400G a GPU",
                f"nvlink-deepep-{sms}sm", "infiniband-400g",
            )
            for sms in SMS
        },
        "h200-ethernet-100g": ("Nodes of 8 H200, NCCL, one 100G Ethernet port a node", "nvlink-nccl", "ethernet-100g"),
        "pcie5-infiniband-200g": ("GPUs on PCIe 5.0, InfiniBand 200G a GPU", "pcie5", "infiniband-200g"),
        "pcie4-ethernet-25g": ("GPUs on PCIe 4.0, one 25G Ethernet port a node", "pcie4", "ethernet-25g"),
    }  # fmt: skip
    return [
        Topology(name=name, description=text, paths={"intra_node": paths[inside], "inter_node": paths[between]})
        for name, (text, inside, between) in made.items()
    ]


def errors(measured: list[Rows]) -> Iterator[str]:
    """A line for each table: how far rows lie that were held out of the fit, beside a plain α + bytes / β."""
    yield f"{'error on rows held out':<34}{'rows':>6}{'median':>9}{'p90':>8}   α + bytes/β:{'median':>8}{'p90':>8}"
    for rows in measured:
        table, plain = held_out_errors(rows.sent, rows.us)
        label = f"{rows.path} {rows.direction or f'{rows.ranks} GPUs'}"
        figures = [f"{np.percentile(errors, at):>8.1%}" for errors in (table, plain) for at in (50, 90)]
        yield f"{label:<34}{len(rows.us):>6} {''.join(figures[:2])}               {''.join(figures[2:])}"


def _to_others(sent: list[float]) -> np.ndarray:
    return np.array(sent) * (DEEPEP_RANKS - 1) / DEEPEP_RANKS


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def measured_rows(folder: Path) -> list[Rows]:
    """The rows of every table that FOLDER has."""
    return [
        *nccl(read(folder / "aic_h200_nccl.csv")),
        *low_latency(read(folder / "aic_h200_deepep_ll.csv")),
        *normal(read(folder / "aic_h200_deepep_normal.csv")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    measured = measured_rows(parser.parse_args().folder)
    paths = wires(measured)
    FILE.write_text(HEADER + to_toml(paths, topologies(paths)), encoding="utf-8")
    print("\n".join(errors(measured)))


if __name__ == "__main__":
    main()
