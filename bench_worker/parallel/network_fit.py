"""Tables of a topology from measured all-to-alls, and how well they tell rows that they were not made from. Torch-free.

Shapes: ``N`` measured rows, ``K`` knots of a table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from bench_worker.parallel.topology import Table, Topology, Wire

#: Weight of a bend of the curve against a row's error: it only decides where no row lies between two knots.
SMOOTH = 0.05
#: Errors of log time below this count squared, those above by their size, so that a stray row doesn't bend the curve.
STRAY = 0.01
ROUNDS = 20
FOLDS = 3
#: Names that TOML takes without quotes.
BARE = re.compile("[A-Za-z0-9_-]+")


def fit_table(sent: np.ndarray, us: np.ndarray, ranks: int, direction: str | None = None) -> Table:
    """The `Table` of rows ``sent`` bytes [N] and ``us`` [N]: log time, linear in log size between knots, each an octave
    or less from the next, by least absolute errors (iteratively reweighted least squares). More bytes never take less
    time: knots that stray rows put the other way are levelled."""
    size, time = np.log(sent), np.log(us)
    octaves = (size.max() - size.min()) / np.log(2)
    knots = np.linspace(size.min(), size.max(), max(2, int(np.ceil(octaves)) + 1))
    hats = np.stack([np.interp(size, knots, hat) for hat in np.eye(len(knots))], axis=1)  # [N, K]
    bends = SMOOTH * np.diff(np.eye(len(knots)), n=2, axis=0)
    level, weight = np.zeros(len(knots)), np.ones(len(size))
    for _ in range(ROUNDS):
        rows = np.concatenate([hats * weight[:, None], bends])
        level = np.linalg.lstsq(rows, np.concatenate([time * weight, np.zeros(len(bends))]), rcond=None)[0]
        weight = 1 / np.sqrt(np.maximum(np.abs(hats @ level - time), STRAY))
    return Table.model_validate(
        {
            "ranks": ranks,
            "direction": direction,
            "bytes": [float(f"{value:.4g}") for value in np.exp(knots)],
            "us": [float(f"{value:.4g}") for value in np.exp(isotonic_regression(level).x)],
        }
    )


def fit_plain(sent: np.ndarray, us: np.ndarray) -> tuple[float, float]:
    """α in µs and 1 / β in µs a byte, neither negative, with the least squares of relative errors."""
    (alpha, per_byte), _ = nnls(np.stack([1 / us, sent / us], axis=1), np.ones(len(us)))
    return float(alpha), float(per_byte)


def held_out_errors(sent: np.ndarray, us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors [N] of the table and of the plain α + bytes / β, each row by a fit that has not seen it: of the
    sizes, in order, every third is held out at a time, with all of its rows."""
    fold = np.unique(sent, return_inverse=True)[1] % FOLDS
    errors = np.empty((2, len(sent)))
    for out in (fold == number for number in range(FOLDS)):
        alpha, per_byte = fit_plain(sent[~out], us[~out])
        table = fit_table(sent[~out], us[~out], ranks=2).time_us(sent[out])
        errors[:, out] = np.abs(np.stack([table, alpha + per_byte * sent[out]]) / us[out] - 1)
    return errors[0], errors[1]


def to_toml(paths: dict[str, Wire], topologies: Iterable[Topology]) -> str:
    """The text of a topology file: ``paths`` by name, whatever characters it has, and ``topologies`` made of them."""
    lines: list[str] = []
    for topology in topologies:
        named = {id(wire): name for name, wire in paths.items()}
        fields = {domain: named[id(wire)] for domain, wire in topology.paths.items()}
        lines += ["", f"[topologies.{_key(topology.name)}]"]
        lines += _fields({"description": topology.description, **fields})
    for name, wire in paths.items():
        lines += ["", f"[paths.{_key(name)}]"]
        lines += _fields(wire.model_dump(exclude_none=True, exclude_defaults=True, exclude={"tables"}))
        for table in wire.tables:
            lines += ["", f"[[paths.{_key(name)}.tables]]", *_fields(table.model_dump(exclude_none=True))]
    return "\n".join(lines[1:]) + "\n"


def _key(name: str) -> str:
    """A name as a part of a table's name: bare where it may be."""
    return name if BARE.fullmatch(name) else _toml(name)


def _fields(values: dict[str, object]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in values.items()]


def _toml(value: object) -> str:
    if isinstance(value, str):
        # A basic string of TOML is one of JSON, but for characters beyond 16 bits and for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
