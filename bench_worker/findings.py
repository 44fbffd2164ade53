"""What is concluded from the runs of a result: comparisons, and a verdict. Torch-free."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Origin = Literal["measured", "scaled", "modelled", "assumed"]
Cost = Literal["weights", "compute", "communication", "waiting", "overhead", "attention"]
Dominant = Literal["weights", "compute", "communication", "waiting", "overhead", "attention", "undecided"]
Change = Literal["faster", "slower", "no significant change", "not enough samples"]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Comparison(Part):
    """One quantity of a contender against that of its base (`bench_worker.stats`), from ``samples`` pairs of values.

    ``ratio``: contender / base, so that above 1 is slower. ``standard_error`` is that of ln ratio, with so many
    ``degrees`` of freedom. Without enough samples there is a ratio, and nothing that says how sure it is.
    """

    ratio: float
    ci95: tuple[float, float] | None = None
    #: Two-sided, of the ratio being 1; corrected where it is one of several (see ``family``).
    p_value: float | None = None
    samples: int
    verdict: Change
    #: Step by step of variants that ran interleaved; else of runs at different times, which is less certain.
    paired: bool = True
    #: Comparisons that this one was corrected for, itself among them.
    family: int = 1
    standard_error: float | None = None
    degrees: float | None = None


class RunComparison(Part):
    """A variant's run against that of the first variant, under one condition; or, with ``condition`` null, the
    geometric mean over all conditions. See `bench_worker.comparison`."""

    base: str
    contender: str
    condition: str | None
    #: ``step_us``, ``layer_us``, every stage and sub-stage by its name, and the latencies (``ttft_ms``, …).
    quantities: dict[str, Comparison]
    #: The stage that most of a change of the step lies in; None where the step did not change, or no stage stands out.
    cause: str | None = None


class Advice(Part):
    """A next experiment: ``experiment`` is its document, which changes ``field`` alone."""

    sentence: str
    field: str
    experiment: dict[str, Any]


class Verdict(Part):
    """What a step's time goes to (`bench_worker.verdict`). ``shares`` of the mean step sum to 1."""

    dominant: Dominant
    shares: dict[Cost, float]
    sentence: str
    #: How the shares came about: assumed or modelled where the network between the ranks is.
    origin: Origin
    #: Memory of the deployment on its worst rank, and of the device that measured: free before the measurement.
    memory_bytes: int
    device_bytes: int | None
    #: At most three.
    advice: list[Advice]


class Verdicts(Verdict):
    """That of the first variant over all conditions, which count alike; and that of every run with times, by its
    name: ``variant at condition``."""

    runs: dict[str, Verdict]
