"""How long bytes take between ranks: a model of the network, from `topologies.toml` or a file like it. Torch-free.

Bytes stay on their rank (``local``), in their node (``intra_node``) or leave it (``inter_node``). Each domain has a
path: a table of measured times over bytes, or a start-up time and a rate, α + bytes / β. Every path says where it comes
from: ``modelled`` from measured rows, or ``assumed``.

Shapes: ``R`` ranks; ``…`` any dimensions before, such as layers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bench_worker.errors import SpecError, not_one_of, shown
from bench_worker.schema_errors import SpecProblem, spec_errors

FILE = Path(__file__).with_name("topologies.toml")
#: What ``parallel.topology`` means where it is left empty.
DEFAULT = "h200-nccl"
DOMAINS = ("local", "intra_node", "inter_node")
MAX_FILE_BYTES = 1_000_000

Direction = Literal["dispatch", "combine"]
Positive = Annotated[float, Field(gt=0)]
M = TypeVar("M", bound=BaseModel)
Text = Annotated[str, Field(min_length=1, max_length=400)]


class TopologyError(ValueError):
    """A topology is unknown, can't be read, or lacks what is asked of it; the message names it and what there is."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Table(Part):
    """Times ``us`` of an all-to-all among ``ranks`` in which each sends ``bytes`` to others, as much to each."""

    ranks: Annotated[int, Field(ge=2)]
    #: None: both ways take the same time.
    direction: Direction | None = None
    bytes: Annotated[list[Positive], Field(min_length=2)]
    us: Annotated[list[Positive], Field(min_length=2)]

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        if len(self.bytes) != len(self.us):
            message = f"{len(self.us)} times stand beside {len(self.bytes)} bytes; there must be as many of both"
            raise SpecProblem(SpecError("tables.us", self.us, message))
        if (np.diff(self.bytes) <= 0).any():
            raise SpecProblem(SpecError("tables.bytes", self.bytes, f"{shown(self.bytes)} do not ascend"))
        return self

    def time_us(self, sent: np.ndarray) -> np.ndarray:
        """Log time interpolated over log size; below the table its first time, above it in proportion to the bytes."""
        size, us = np.log(self.bytes), np.log(self.us)
        at = np.log(sent)
        return np.exp(np.interp(at, size, us) + np.maximum(at - size[-1], 0.0))


class Wire(Part):
    """A path between ranks: ``tables``, or ``alpha_us`` and ``gb_per_s`` (10⁹ bytes a second, each way)."""

    origin: Literal["modelled", "assumed"]
    #: Who measured it, or which datasheet says so.
    source: Text
    #: One adapter for a whole node, through which all of its ranks send; else each rank has its own.
    shared_by_node: bool = False
    alpha_us: Annotated[float, Field(ge=0)] | None = None
    gb_per_s: Positive | None = None
    tables: tuple[Table, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        rated = self.alpha_us is not None and self.gb_per_s is not None
        if rated == bool(self.tables) or (self.alpha_us is None) != (self.gb_per_s is None):
            message = "a path has either tables, or both alpha_us and gb_per_s"
            raise SpecProblem(SpecError("gb_per_s", self.gb_per_s, message))
        for direction in ("dispatch", "combine"):
            ranks = [table.ranks for table in self._for(direction)]
            if (self.tables and not ranks) or len(set(ranks)) != len(ranks):
                message = f"for {direction} there are tables for {ranks or 'no'} ranks; one for each number is needed"
                raise SpecProblem(SpecError("tables", ranks, message))
        return self

    @property
    def most_ranks(self) -> int | None:
        """The most ranks that a table was measured among; None where there is no table."""
        return max((table.ranks for table in self.tables), default=None)

    def time_us(self, sent: np.ndarray, ranks: int, direction: Direction) -> np.ndarray:
        """Time of sending (or receiving) ``sent`` bytes, any shape, among ``ranks``; 0 where there are none.

        The table is that of the fewest ranks which are at least so many, or of the most.
        """
        some = np.where(sent > 0, sent, 1.0)
        if self.alpha_us is not None and self.gb_per_s is not None:
            time = self.alpha_us + some / self.gb_per_s / 1e3
        else:
            tables = sorted(self._for(direction), key=lambda table: table.ranks)
            time = next((table for table in tables if table.ranks >= ranks), tables[-1]).time_us(some)
        return np.where(sent > 0, time, 0.0)

    def _for(self, direction: str) -> list[Table]:
        return [table for table in self.tables if table.direction in (None, direction)]


class Topology(Part):
    """The path of each domain. ``local`` may be missing: rows that stay cost nothing beyond packing them."""

    name: str
    description: Text
    paths: dict[str, Wire]

    def exchange_us(self, sent: np.ndarray, nodes: np.ndarray, direction: Direction = "dispatch") -> np.ndarray:
        """Time float64 […, R] in µs of each rank's part in an all-to-all.

        ``sent`` […, R, R]: bytes from the rank of the row to that of the column. ``nodes`` [R]: each rank's node. A
        rank is busy in a domain for as long as an even all-to-all takes in which every rank sends what this one sends
        or receives, whichever is more; its domains work at the same time, over wires of their own. It is the time of
        the transfer alone: who then waits for whom is for the caller to see.

        Raises `TopologyError` where bytes cross a domain that this topology lacks.
        """
        sent, nodes = np.asarray(sent, dtype=np.float64), np.unique(nodes, return_inverse=True)[1]
        ranks = len(nodes)
        if sent.shape[-2:] != (ranks, ranks):
            raise ValueError(f"sent: has the shape {list(sent.shape)}; it must end in [{ranks}, {ranks}]")
        us = np.zeros(sent.shape[:-1])
        for domain, mask in domains(nodes).items():
            leaving, coming = (np.einsum(f"...rc,rc->...{end}", sent, mask.astype(np.float64)) for end in "rc")
            if not leaving.any() or (domain == "local" and "local" not in self.paths):
                continue
            wire = self._path(domain)
            if wire.shared_by_node:
                in_node = (nodes[:, None] == np.arange(nodes.max() + 1)).astype(np.float64)
                leaving, coming = (np.where(each > 0, each @ in_node @ in_node.T, 0.0) for each in (leaving, coming))
            among = int(np.bincount(nodes).max()) if domain == "intra_node" else ranks
            us = np.maximum(us, wire.time_us(np.maximum(leaving, coming), among, direction))
        return us

    def require(self, used: Iterable[str]) -> None:
        """Raise `TopologyError` unless there is a path for each domain in ``used``."""
        for domain in used:
            if domain != "local":
                self._path(domain)

    def origin(self, used: Collection[str], ranks_a_node: int | None = None) -> Literal["modelled", "assumed"]:
        """How far to trust times that ran over the domains in ``used``: assumed where any of their paths is, or where
        more ranks share a node than the rows were measured among."""
        return "assumed" if any(self._assumed(domain, ranks_a_node) for domain in used) else "modelled"

    def sources(self, used: Collection[str], ranks_a_node: int | None = None) -> list[str]:
        """A sentence for each domain in ``used`` that has a path: its origin, and who says so."""
        lines = []
        for domain in DOMAINS:
            if domain not in used or domain not in self.paths:
                continue
            wire = self.paths[domain]
            beyond = self._beyond(domain, ranks_a_node)
            note = f"; measured among {beyond} ranks, used for {ranks_a_node}" if beyond else ""
            origin = "assumed" if self._assumed(domain, ranks_a_node) else "modelled"
            lines.append(f"{domain}: {origin}, {wire.source}{note}")
        return lines

    def _assumed(self, domain: str, ranks_a_node: int | None) -> bool:
        wire = self.paths.get(domain)
        return wire is not None and (wire.origin == "assumed" or self._beyond(domain, ranks_a_node) is not None)

    def _beyond(self, domain: str, ranks_a_node: int | None) -> int | None:
        """The most ranks that the rows of the path inside a node hold, where a node has more than that."""
        most = self._path(domain).most_ranks if domain == "intra_node" else None
        return most if most is not None and ranks_a_node is not None and ranks_a_node > most else None

    def _path(self, domain: str) -> Wire:
        if (wire := self.paths.get(domain)) is None:
            has = ", ".join(name for name in DOMAINS if name in self.paths)
            raise TopologyError(f"{shown(self.name)} has no path {domain}, which this layout uses; it has {has}")
        return wire


def domains(nodes: np.ndarray) -> dict[str, np.ndarray]:
    """Which pairs of a sending and a receiving rank belong to each domain: bool [R, R] by its name."""
    same, own = nodes[:, None] == nodes, np.eye(len(nodes), dtype=bool)
    return {"local": own, "intra_node": same & ~own, "inter_node": ~same}


def load_topology(name_or_path: str | None = None, *, allow_paths: bool = True) -> Topology:
    """A topology by its name in `topologies.toml`, or the one in a file of the same form, which may use the paths of
    the first by their names.

    Raises `TopologyError`, in one sentence.
    """
    name = DEFAULT if name_or_path is None else name_or_path
    if name in builtin():
        return builtin()[name]
    if not {"/", "\\", "."} & set(name):
        raise TopologyError(not_one_of(name, builtin()))
    if not allow_paths:
        raise TopologyError(f"{shown(name)} is a file path; file paths are for the command line only")
    try:
        with Path(name).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TopologyError(f"{name} can't be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise TopologyError(f"{name} is larger than {MAX_FILE_BYTES:,} bytes")
    _, found = parse(data, name, parse(FILE.read_bytes(), FILE.name)[0])
    if len(found) != 1:
        raise TopologyError(f"{name} holds {len(found)} topologies; a file of your own holds one")
    return next(iter(found.values()))


@cache
def builtin() -> dict[str, Topology]:
    """The topologies of `topologies.toml`, by name, in its order."""
    return parse(FILE.read_bytes(), FILE.name)[1]


def parse(data: bytes, name: str, known: dict[str, Wire] | None = None) -> tuple[dict[str, Wire], dict[str, Topology]]:
    """Paths and topologies, by name, of the TOML text ``data`` of the file ``name``; ``known`` paths may be used.

    Raises `TopologyError` for text that is none, naming the place.
    """
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TopologyError(f"{name} is not TOML: {error}") from None
    paths, topologies = dict(known or {}), {}
    for part in document:
        if part not in ("paths", "topologies") or not isinstance(document[part], dict):
            raise TopologyError(f"{name}: {shown(part)} is not one of the tables paths, topologies")
    for path, fields in document.get("paths", {}).items():
        paths[path] = _valid(Wire, fields, f"{name}: paths.{path}")
    for topology, fields in document.get("topologies", {}).items():
        topologies[topology] = _topology(topology, fields, paths, f"{name}: topologies.{topology}")
    return paths, topologies


class _Named(Part):
    """A topology as it stands in the file: the names of its paths."""

    description: Text
    local: str | None = None
    intra_node: str | None = None
    inter_node: str | None = None


def _topology(name: str, fields: Any, paths: dict[str, Wire], place: str) -> Topology:
    named = _valid(_Named, fields, place).model_dump(exclude_none=True)
    description = named.pop("description")
    if not named:
        raise TopologyError(f"{place} names no path; it may have {', '.join(DOMAINS)}")
    for domain, path in named.items():
        if path not in paths:
            raise TopologyError(f"{place}.{domain}: {not_one_of(path, paths)}")
    return Topology.model_validate(
        {"name": name, "description": description, "paths": {domain: paths[path] for domain, path in named.items()}}
    )


def _valid(kind: type[M], fields: Any, place: str) -> M:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise TopologyError(f"{place}.{spec_errors(error, kind)[0]}") from None
