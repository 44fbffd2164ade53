"""Experts and ranks of one run: who waits for whom, which rank does most, and what travels between them (pure).

Shapes: ``R`` ranks, ``S`` steps, ``L`` executed layers, ``P`` physical experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bench_worker import models
from bench_worker.parallel.topology import DOMAINS, builtin
from bench_worker.result import LAYER_STAGES, Exchange, Summary
from bench_worker.spec import Spec
from webapp.experiments import rank_charts
from webapp.experiments.layout_drawing import Drawing, drawing
from webapp.experiments.origins import NETWORKS
from webapp.experiments.redundancy import Cost, redundancy_cost
from webapp.numbers import number_in
from webapp.ui import formatting, heat
from webapp.ui.pictures import Piece

#: What the columns over all ranks are called in a `models.StageSeries`.
IDLE, ASSIGNMENTS = "idle_us", "assignments"
BYTES = {domain: f"bytes.{domain}" for domain in DOMAINS}
GROUP_BYTES = {domain: f"group_bytes.{domain}" for domain in DOMAINS}
#: Read whole, of every rank. Of the stages only the chosen step is read: there are too many.
WHOLE = (IDLE, ASSIGNMENTS, *BYTES.values(), *GROUP_BYTES.values())
#: What is done once a step, around the layers.
OTHER = "other"
#: A MoE layer and, where it was measured, the attention before it, and its part of what is done once a step.
STAGES = ("attention", *LAYER_STAGES, OTHER)
#: The table of more ranks than this is folded, and the matrix has one of the nodes instead.
TABLED = 16
DOMAIN_WORDS = {"local": "on the rank itself", "intra_node": "inside the node", "inter_node": "between nodes"}


class Columns(NamedTuple):
    """What a run's ranks did: ``idle_us`` and ``assignments`` [R, S]; ``bytes`` [R, S] by domain, and ``group_bytes``
    likewise, of the collectives of attention groups; ``span_us`` [S], the time of a layer with what it waits; ``steps``
    [S], their numbers."""

    steps: list[int]
    span_us: np.ndarray
    idle_us: np.ndarray
    assignments: np.ndarray
    bytes: dict[str, np.ndarray]
    group_bytes: dict[str, np.ndarray]

    @property
    def idle_share(self) -> np.ndarray:
        """Part of the ranks' time that they wait, by step [S]."""
        return self.idle_us.mean(axis=0) / np.maximum(self.span_us, 1e-9)


class StepLink(NamedTuple):
    words: str
    number: int
    share: float


class RankRow(NamedTuple):
    """A rank in the chosen step: µs by stage, in the order of `Ranks.stages`; assignments over the whole run."""

    number: int
    stages_us: list[float]
    idle_us: float
    assignments: int
    of_mean: float
    bytes: list[int]


class Judgement(NamedTuple):
    """What the placement is, in words, with its imbalance on what it was fitted to and on the run."""

    policy: str
    figures: list[tuple[str, float]]
    verdict: str


@dataclass(frozen=True)
class Ranks:
    origin: str
    topology: str | None
    layout: Drawing
    step: int
    #: Who waits for whom, in a sentence.
    waiting: str
    stages: list[str]
    rows: list[RankRow]
    timeline: dict[str, Any]
    load: dict[str, Any]
    idle: dict[str, Any]
    links: list[StepLink]
    domains: list[tuple[str, str, int, float]]
    #: What groups that share one attention sent beside that, in a sentence; empty where nothing.
    groups: str
    pieces: list[Piece]
    matrix: heat.Map
    #: By node where there are too many ranks: what its rows are, and bytes.
    between: str
    table: list[list[int]]
    placement: Judgement
    cost: Cost | None
    drawn: int
    count_only: bool

    @property
    def are_many(self) -> bool:
        """Too many for a page to list them unasked."""
        return len(self.rows) > TABLED

    @property
    def size(self) -> str:
        """The timeline's height, as the page names it."""
        return "low" if self.drawn <= 4 else "" if self.drawn <= 16 else "tall"


def columns(
    steps: list[int], span_us: list[float], whole: Mapping[str, Mapping[int, list[float]]], num_ranks: int
) -> Columns:
    """From the series `WHOLE`, each by its rank; a domain that no rank has bytes in may be missing."""

    def stacked(name: str) -> np.ndarray:
        return np.array([whole[name].get(rank) or np.zeros(len(steps)) for rank in range(num_ranks)])

    return Columns(
        steps=steps,
        span_us=np.array(span_us),
        idle_us=stacked(IDLE),
        assignments=stacked(ASSIGNMENTS),
        bytes={domain: stacked(name) for domain, name in BYTES.items()},
        group_bytes={domain: stacked(name) for domain, name in GROUP_BYTES.items()},
    )


def step_place(columns: Columns, asked: str) -> int:
    """The place of the step ``asked`` for by its number; of the one with the most waiting where there is no such."""
    if (number := number_in(asked)) in columns.steps:
        return columns.steps.index(number)
    return int(columns.idle_share.argmax())


def section(
    spec: Spec,
    summary: Summary,
    exchange: Exchange,
    columns: Columns,
    place: int,
    stages_us: Mapping[str, Sequence[float]],
) -> Ranks:
    """``stages_us``: [R] of each of `STAGES` in the step at ``place``."""
    stages = [stage for stage in STAGES if any(stages_us.get(stage, ()))]
    load = columns.assignments.sum(axis=1)
    of_mean = load / max(load.mean(), 1e-9)
    sent = {domain: columns.bytes[domain].sum(axis=1) for domain in DOMAINS}
    totals = {domain: int(values.sum()) for domain, values in sent.items()}
    idle = columns.idle_us[:, place]
    rows = [
        RankRow(
            number=rank,
            stages_us=[stages_us[stage][rank] for stage in stages],
            idle_us=float(idle[rank]),
            assignments=int(load[rank]),
            of_mean=float(of_mean[rank]),
            bytes=[int(sent[domain][rank]) for domain in DOMAINS],
        )
        for rank in range(len(load))
    ]
    dispatched = np.array(exchange.dispatched_bytes)
    by_node = len(dispatched) > TABLED
    return Ranks(
        origin=NETWORKS.get(exchange.network, ("", ""))[1],
        topology=_network(exchange.topology),
        layout=drawing(spec.parallel, models.load(spec.model, allow_paths=True).experts, held(exchange)),
        step=columns.steps[place],
        waiting=_waiting(idle, float(columns.span_us[place])),
        stages=stages,
        rows=rows,
        timeline=rank_charts.timeline(stages, [(*row.stages_us, row.idle_us) for row in rows]),
        load=rank_charts.load(of_mean),
        idle=rank_charts.idle(columns.steps, columns.idle_share),
        links=_links(columns),
        domains=[
            (domain, DOMAIN_WORDS[domain], total, total / max(sum(totals.values()), 1))
            for domain, total in totals.items()
        ],
        groups=_groups(columns.group_bytes),
        pieces=[
            Piece(domain, total, f"{domain}: {formatting.size(total)}") for domain, total in totals.items() if total
        ],
        matrix=_matrix(dispatched),
        between="node" if by_node else "rank",
        table=(_by_node(dispatched, exchange.nodes) if by_node else dispatched).tolist(),
        placement=_judgement(spec, summary, exchange),
        cost=redundancy_cost(spec),
        drawn=min(len(rows), rank_charts.MAX_RANKS),
        count_only=exchange.count_only,
    )


def held(exchange: Exchange, layer: int = 0) -> np.ndarray:
    """The experts of each rank in an executed ``layer``, [R, P / R]."""
    order = np.argsort(exchange.rank_of_physical, kind="stable")
    return np.array(exchange.physical_to_logical[layer])[order].reshape(len(exchange.nodes), -1)


def _network(name: str | None) -> str | None:
    """The modelled network's name, with what it is where it came along."""
    return f"{name}: {builtin()[name].description}" if name in builtin() else name


def _groups(sent: Mapping[str, np.ndarray]) -> str:
    """What the collectives of tensor-parallel groups sent, ``sent`` [R, S] by domain."""
    totals = {domain: int(values.sum()) for domain, values in sent.items()}
    parts = [f"{formatting.size(total)} {DOMAIN_WORDS[domain]}" for domain, total in totals.items() if total]
    if not parts:
        return ""
    return f"Beside that, the ranks of each attention group sent one another {' and '.join(parts)} around the layers."


def _waiting(idle_us: np.ndarray, span_us: float) -> str:
    slowest, first = int(idle_us.argmin()), int(idle_us.argmax())
    longest = float(idle_us[first])
    if longest <= 0.01 * span_us:
        return "The ranks end together: none waits for long."
    mean, span, most = (
        formatting.duration_us(us) for us in (float(np.delete(idle_us, slowest).mean()), span_us, longest)
    )
    return f"The others wait for rank {slowest}: {mean} of a layer's {span} in the mean; rank {first} longest, {most}."


def _links(columns: Columns) -> list[StepLink]:
    share = columns.idle_share
    found = (("Most waiting", share.argmax()), ("Least waiting", share.argmin()))
    return [StepLink(words, columns.steps[int(place)], float(share[int(place)])) for words, place in found]


def _matrix(dispatched: np.ndarray) -> heat.Map:
    """Each pair against an even share of all bytes; of too many ranks, neighbours together."""
    ranks = len(dispatched)
    step = -(-ranks // rank_charts.MAX_RANKS)
    starts = range(0, ranks, step)
    cells = np.add.reduceat(np.add.reduceat(dispatched, starts, axis=0), starts, axis=1)
    levels = heat.levels(cells.reshape(1, -1)).reshape(cells.shape)
    most = np.unravel_index(int(dispatched.argmax()), dispatched.shape)
    each = f", {step} together" if step > 1 else ""
    return heat.Map(
        levels,
        f"Bytes dispatched between {ranks} ranks: most from rank {most[0]} to rank {most[1]}, "
        f"{formatting.size(int(dispatched.max()))}.",
        f"From {ranks} ranks, top to bottom, to {ranks} ranks, left to right{each}",
    )


def _by_node(dispatched: np.ndarray, nodes: Sequence[int]) -> np.ndarray:
    at = (np.array(nodes)[:, None] == np.unique(nodes)).astype(np.int64)
    return at.T @ dispatched @ at


def _judgement(spec: Spec, summary: Summary, exchange: Exchange) -> Judgement:
    """On which load the placement was judged. Only a load that it was not made from says what to expect of it."""
    policy, figures = spec.parallel.placement, [("on this run", summary.imbalance)]
    if exchange.fitted_to == "nothing" or exchange.fitted_imbalance is None:
        return Judgement(policy, figures, "It looks at no load, so any load judges it fairly.")
    figures.insert(0, (f"on the {exchange.fitted_to} that it was fitted to", exchange.fitted_imbalance))
    words = {
        "first pass": "The run has the load that the placement was fitted to, by a first pass over the same trace",
        "recording": "The run replays the recording that the placement was fitted to",
    }[exchange.fitted_to]
    if exchange.held_out_imbalance is None:
        return Judgement(policy, figures, f"{words}; other traffic will balance less well.")
    figures.append(("fitted to the first half of that load, on its second half", exchange.held_out_imbalance))
    return Judgement(policy, figures, f"{words}, so expect of other traffic what the half that it had not seen says.")
