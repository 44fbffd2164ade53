"""Two runs beside each other: whether they may be compared, how, and what came out (pure)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bench_worker.ceilings import Ceilings
from bench_worker.findings import Comparison, Verdict
from bench_worker.result import STAGES, Noise, Summary
from bench_worker.rotation import turns, whole_rotations
from bench_worker.spec import Spec
from bench_worker.stats import compare_paired, compare_unpaired
from webapp.experiments import origins
from webapp.ui.formatting import change, within

#: Whole steps, as a part that is compared; the others are the stages and the metrics of requests.
STEP = "step"
#: Latencies of requests that are compared.
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
#: Columns over steps that say which batch a step computed.
BATCH = ("index", "prefill_tokens", "decode_tokens")

UNCHANGED = "no significant change"


@dataclass(frozen=True, eq=False)
class Measured:
    """A run with times. ``parts``: by part (`STEP` and the stages of whole steps), float [S] in µs; ``batches``: the
    columns of `BATCH`, [S] each; ``requests``: by metric one value a finished request, or None where it has none."""

    id: int
    experiment: int
    title: str
    variant: str
    condition: str
    position: int
    spec: Spec
    summary: Summary
    layer_scale: float
    #: Variants that ran interleaved with it, itself among them.
    interleaved: int
    parts: Mapping[str, np.ndarray]
    batches: Mapping[str, np.ndarray]
    requests: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""
    noise: Noise | None = None
    fit: Mapping[str, Any] = field(default_factory=dict)
    #: Of its machine and number of threads; None where its result has none.
    ceilings: Ceilings | None = None
    #: Share of the pairs of a token and an expert that are the model's own choice as well; None: it has none.
    overlap: float | None = None
    #: Of its whole-model times; empty where nobody asks for it.
    origin: str = ""
    #: None where its result makes none.
    verdict: Verdict | None = None

    @property
    def mark(self) -> str:
        """The origin of its whole-model times."""
        return origins.mark(self.origin, self.layer_scale)

    @property
    def stages(self) -> list[str]:
        return [stage for stage in STAGES if stage in self.parts]

    @cached_property
    def schedule(self) -> str:
        """What decides the batches: equal for runs of one corner. Limits only judge what was measured."""
        return json.dumps(self.spec.workload.model_dump(exclude={"limits"}), sort_keys=True)


class Compared(NamedTuple):
    """A part of a run against the same part of the baseline's; ``reason`` says why it has no ratio."""

    found: Comparison | None
    reason: str = ""

    @property
    def verdict(self) -> str:
        return self.found.verdict if self.found else ""

    @property
    def css(self) -> str:
        """The class of its words: colour only repeats the sign."""
        return self.verdict if self.verdict in ("faster", "slower") else "same"

    @property
    def change(self) -> str:
        """``▼ 18%``, ``~`` for no significant change, or why there is neither."""
        if self.found is None:
            return self.reason
        if self.found.ci95 is None:
            return "too few samples"
        return change(self.found.ratio) if self.css != "same" else "~"

    @property
    def within(self) -> str:
        """The interval of a change, ``16–19``; empty where there is none to tell."""
        has_one = self.found and self.found.ci95 and self.css != "same"
        return within(self.found.ratio, *self.found.ci95) if has_one else ""  # type: ignore[union-attr,misc]

    @property
    def words(self) -> str:
        """``▼ 18% (16–19)``."""
        return f"{self.change} ({self.within})" if self.within else self.change

    @property
    def more(self) -> str:
        """What the words stand on: the interval in any case, the samples, how they were compared, the p-value."""
        if self.found is None:
            return ""
        if self.found.ci95 is None:
            return f"{change(self.found.ratio)}, but only {self.found.samples:,} samples"
        corrected = f" after correction for {self.found.family}" if self.found.family > 1 else ""
        interval = f"{change(self.found.ratio)} ({within(self.found.ratio, *self.found.ci95)})"
        how = "paired" if self.found.paired else "unpaired"
        return f"{interval}, {self.found.samples:,} samples, {how}, {p_words(self.found.p_value)}{corrected}"


#: Compares a part of two runs.
Compare = Callable[[Measured, Measured, str], Compared]


def p_words(p_value: float | None) -> str:
    return "" if p_value is None else "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def compare(base: Measured, other: Measured, part: str) -> Compared:
    """``other`` against ``base``: step by step where both were measured interleaved on the same batches, else as runs
    at different times, which is less certain."""
    if base.schedule != other.schedule:
        return Compared(None, "other batches")
    if part in METRICS:
        return _requests(base, other, part)
    if part not in base.parts or part not in other.parts:
        return Compared(None, "no such stage in both")
    if base.summary.rounds is not None or other.summary.rounds is not None:
        return Compared(None, "in an open loop each has batches of its own")
    common = common_steps(base, other)
    if not common:
        return Compared(None, "other batches")
    return _compare(base, other, base.parts[part][:common], other.parts[part][:common], base.batches["index"][:common])


def common_steps(base: Measured, other: Measured) -> int:
    """How many first steps of both computed the same batches; one that was truncated has fewer."""
    length = min(len(run.batches["index"]) for run in (base, other))
    same = np.all([base.batches[name][:length] == other.batches[name][:length] for name in BATCH], axis=0)
    return int(length if same.all() else same.argmin())


def _requests(base: Measured, other: Measured, metric: str) -> Compared:
    ours, theirs = (run.requests.get(metric, ()) for run in (base, other))
    if not ours or len(ours) != len(theirs):
        return Compared(None, "not the same requests finished" if ours and theirs else "no latencies")
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    if not pairs:
        return Compared(None, "no latencies")
    first, second = np.array(pairs, dtype=float).T
    return _compare(base, other, first, second)


def _compare(
    base: Measured, other: Measured, ours: np.ndarray, theirs: np.ndarray, index: np.ndarray | None = None
) -> Compared:
    """``index``: the places of steps in the schedule; None of requests."""
    if not ours.all() or not theirs.all():
        return Compared(None, "takes no time")
    if base.experiment != other.experiment or other.summary.rounds is not None:
        return Compared(compare_unpaired(ours, theirs))
    if index is None or not (kept := whole_rotations(index, other.interleaved)).any():
        return Compared(compare_paired(ours, theirs))
    return Compared(compare_paired(ours[kept], theirs[kept], turns(index[kept], other.interleaved)))
