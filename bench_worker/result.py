"""What comes back: the result file, schema 1. Step and request arrays are stored column-wise. Torch-free.

Units stand in the names (``_us``, ``_ms``, ``_bytes``). ``stages_us`` holds stages and their dotted sub-stages
(``route`` = ``route.gate`` + ``route.select``), each for **one** MoE layer (the mean of those executed), or for the
part of the model that `Scale` counts; ``step_us`` is the whole-model step that `Scale` makes of them.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Literal

from pydantic import Field, field_validator

from bench_worker.capacity import Fit
from bench_worker.ceilings import Ceilings
from bench_worker.findings import Origin, Part, RunComparison, Verdicts
from bench_worker.roofline import Bound
from bench_worker.spec import Spec

#: The stages of a step, in the order in which they happen; ``idle`` is waiting for a slower rank.
STAGES = ("route", "permute", "dispatch", "experts", "combine", "attention", "other", "idle")
#: Those that make up one MoE layer.
LAYER_STAGES = STAGES[:5]

Domain = Literal["local", "intra_node", "inter_node"]
FitKind = Literal["deployment", "measurement"]
#: Rates of a machine that may set the time of a run.
Rate = Literal["memory", "matrix"]
RateUnit = Literal["GB/s", "GFLOP/s"]


class RankSteps(Part):
    """Columns over steps, for one rank. ``assignments`` and ``rows`` are those that its experts computed, ``rows`` with
    padding, summed over the executed layers; ``bytes`` are those that it sent, there and back, likewise summed, and
    ``group_bytes`` those of the collectives of its tensor-parallel group; empty where it has none. Times
    are for one MoE layer: on every rank of a step, ``other`` and, for each executed layer, the rest of the stages and
    ``idle_us`` sum to the same span."""

    rank: int
    assignments: list[int]
    rows: list[int]
    stages_us: dict[str, list[float]]
    idle_us: list[float]
    bytes: dict[Domain, list[int]]
    group_bytes: dict[Domain, list[int]] = {}


class Steps(Part):
    """Columns over steps. ``layer_us``: one MoE layer; ``step_us``: the whole model. ``start_us``: when the step began
    on the virtual clock of an open loop; null where steps run back to back."""

    index: list[int]
    prefill_tokens: list[int]
    decode_tokens: list[int]
    step_us: list[float]
    layer_us: list[float]
    assignments: list[int]
    dropped: list[int]
    ranks: list[RankSteps]
    start_us: list[float] | None = None


class Requests(Part):
    """Columns over requests that finished, in trace order, pass by pass. ``tpot_ms`` is null where there is one output
    token. ``request``: index in the trace. ``wait_ms``: arrival to the start of the step that begins the prompt;
    ``preempted_ms``: from arrival to each time that the KV cache was lost. The last three are null in results of before
    they were recorded."""

    arrival_ms: list[float]
    ttft_ms: list[float]
    tpot_ms: list[float | None]
    itl_ms: list[list[float]]
    e2e_ms: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    request: list[int] | None = None
    wait_ms: list[float] | None = None
    preempted_ms: list[list[float]] | None = None


class Distribution(Part):
    """Percentiles by linear interpolation, with the number of samples they stand on."""

    p50: float
    p90: float
    p95: float
    p99: float
    mean: float
    samples: int


class TailSteps(Part):
    """The steps that make the p95 of a latency, as places in `Steps`, and in words what happened there; see
    `bench_worker.tail`."""

    request: int
    value_ms: float
    steps: list[int]
    reason: str


class Summary(Part):
    step_us: Distribution
    layer_us: Distribution
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    e2e_ms: Distribution | None
    #: None where requests have no latencies, because attention was not measured.
    output_tokens_per_s: float | None
    requests_per_s: float | None = None
    #: Requests a second that met all limits; None without limits.
    goodput_per_s: float | None = None
    #: By metric (``ttft_ms``, …), what makes its p95.
    tails: dict[str, TailSteps] = {}
    preemptions: int = 0
    #: Prefill tokens that had been computed before a preemption.
    recomputed_tokens: int = 0
    #: Share of the prompts' tokens that were found in the KV cache; None where prefixes aren't reused.
    prefix_hit_rate: float | None = None
    #: Whole rounds in which the variants of an open loop alternated; None: step by step.
    rounds: int | None = None
    #: Share of the whole-model step time that each stage takes; sums to 1.
    stage_share: dict[str, float]
    #: Median time of each stage and sub-stage over the steps, as in `RankSteps.stages_us`.
    stage_us: dict[str, float]
    imbalance: float = Field(description="max / mean of assignments over ranks")
    expert_imbalance: float = Field(description="max / mean of assignments over experts")
    padding_waste: float = Field(description="1 − real rows / computed rows")
    drop_rate: float = Field(description="dropped / (kept + dropped) assignments")
    idle_share: float
    truncated: bool
    #: Stages against the measured ceilings. Empty where the result has none.
    limits: dict[str, Limit] = {}
    #: Share of a sampled step's device time in which no kernel ran (CUDA only).
    device_idle_share: float | None = None


class Limit(Part):
    """A stage of a run against what the device can do at best (`bench_worker.roofline`), for one MoE layer or part."""

    #: Median over the steps of the least time that the stage's FLOPs and bytes can take.
    floor_us: float
    #: Σ floor / Σ time over the steps: 1 is the device's limit.
    share: float
    bound: Bound
    #: Over all steps: Σ FLOPs / Σ time, and Σ FLOPs / Σ bytes that have to cross the memory bus. None in results of
    #: versions that did not tell; an intensity is None also where nothing has to cross.
    flops_per_s: float | None = None
    intensity: float | None = None
    #: How much of the time is set by bandwidth: memory time / (memory time + compute time) at best, weighted by time.
    by_memory: float | None = None


class Probed(Part):
    """A rate of the machine as probes around a run saw it, in ``unit``; ``moved``: their interquartile range over their
    median. ``ceiling``: what the same kernel reached when the machine was calibrated."""

    unit: RateUnit
    best: float
    median: float
    lowest: float
    moved: float
    ceiling: float

    @property
    def what(self) -> str:
        """Whose rate it is, in words."""
        return "memory bus" if self.unit == "GB/s" else "matrix products"

    @property
    def share(self) -> float:
        """Of the ceiling."""
        return self.median / self.ceiling


class Around(Part):
    """What the machine gave around a run (`bench_worker.watch`): its memory bus and, where that is probed, its matrix
    rate. ``decides``: which of the two sets the floor of the run's MoE layers; None where neither sets their time."""

    probes: int
    memory: Probed
    matrix: Probed | None
    decides: Rate | None

    @property
    def deciding(self) -> Probed | None:
        return {"memory": self.memory, "matrix": self.matrix, None: None}[self.decides]


class Noise(Part):
    """How steady a run was (`bench_worker.noise`), from ``samples`` steps that others like them can be compared with.

    ``spread``: robust standard deviation of a step's time; ``drift``: the last quarter against the first; ``mode_gap``:
    between the two halves that its times fall into best. All as parts of 1. ``warming_steps``: first steps that were
    still slower. ``around``: what the machine gave meanwhile; None where nobody looked, or in results of before that
    was recorded.
    """

    label: Literal["steady", "noisy", "drifting", "bimodal", "contended", "unknown"]
    samples: int
    spread: float = 0.0
    drift: float = 0.0
    mode_gap: float = 0.0
    warming_steps: int = 0
    around: Around | None = None


class Choice(Part):
    """What ``auto`` found at one size of step: the chosen ``backend``, its ``fusion``, and the median time of a MoE
    layer with each candidate."""

    tokens: int
    backend: str
    fusion: str
    layer_us: dict[str, float]


class GraphTimes(Part):
    """Sampled decode steps on CUDA: one MoE layer launched kernel by kernel, and replayed as a CUDA graph (medians)."""

    sampled_steps: int
    eager_us: float
    graph_us: float


class RoutingOutcome(Part):
    """What the strategy came to, over all steps and executed layers."""

    #: Kept, and refused by a capacity limit. A strategy with slots counts its slots as assignments.
    assignments: int
    dropped: int
    #: Tokens by how many experts they got: none, one, two, … A strategy with slots gives every token all experts.
    experts_per_token: list[int]
    #: Experts, once a step and layer, by the rows that they computed: none, 1, 2 to 3, 4 to 7, 8 to 15, …
    rows_per_expert: list[int]
    #: Assignments by step and expert, summed over layers, `steps_per_group` successive steps together.
    expert_assignments_over_time: list[list[int]]
    steps_per_group: int
    #: Pairs of a token and an expert that are this strategy's choice and the model's own as well, among those that are
    #: either's. 1: the experts are the model's own. None: tokens have no experts of their own.
    expert_overlap: float | None
    #: Whether a token's experts depend on no later token. Without that, no model can decode token by token.
    causal: bool


class Scale(Part):
    """How often the whole model holds each measured part: ``step_us`` = Σ count · stage time."""

    executed_layers: int
    counts: dict[str, int]


class Exchange(Part):
    """What the ranks of a run held and sent one another. ``R`` ranks, ``P`` physical experts, ``L`` executed layers."""

    #: [R]: the node that each rank stands on.
    nodes: list[int]
    #: [L][P]: which logical expert each physical one is a copy of; and [P]: the rank that holds it.
    physical_to_logical: list[list[int]]
    rank_of_physical: list[int]
    #: [R][R]: bytes that rank i dispatched to rank j, over all steps and executed layers; combine sends as many back.
    dispatched_bytes: list[list[int]]
    #: What the placement was fitted to: nothing, the recording that the run replays, or a first pass over its trace.
    fitted_to: Literal["nothing", "recording", "first pass"]
    #: max / mean rank load, mean over layers, of the load that the placement was fitted to. Compare
    #: `Summary.imbalance`, which is of the run itself.
    fitted_imbalance: float | None = None
    #: The same on load that it had not seen: fitted to the first half of that load, judged on the second.
    held_out_imbalance: float | None = None
    #: Whether dispatch and combine took the time that is told, or a model made it; ``assumed``: from datasheets.
    network: Origin
    topology: str | None = None
    #: Only counted: no row was moved and no expert computed.
    count_only: bool = False
    #: [R]: how far each rank's clock was ahead of rank 0's, in µs; empty where ranks share one.
    clock_offsets_us: list[float] = []


class Check(Part):
    """The comparison with the slow reference, made before anything was timed."""

    #: Null where the output holds NaN or infinity: JSON has neither.
    rel_error: float | None
    tolerance: float
    tokens: int
    #: What rounding the weights alone changes; null where they are not quantized.
    quantization_error: float | None = None

    @field_validator("rel_error", "quantization_error")
    @classmethod
    def _null_unless_finite(cls, error: float | None) -> float | None:
        return error if error is not None and isfinite(error) else None

    @property
    def passed(self) -> bool:
        return self.rel_error is not None and self.rel_error <= self.tolerance


class ClockCheck(Part):
    """Σ stages against the same layer timed as a whole, on a sample of steps (interleaved)."""

    sampled_steps: int
    sum_over_whole: float | None


class Run(Part):
    variant: str
    condition: str
    spec: Spec
    status: Literal["ok", "wrong result"]
    check: Check
    fit: dict[FitKind, Fit]
    scale: Scale
    clock: ClockCheck | None = None
    steps: Steps | None = None
    requests: Requests | None = None
    summary: Summary | None = None
    #: Assignments by executed layer and expert.
    expert_assignments: list[list[int]] = []
    routing: RoutingOutcome | None = None
    origins: dict[str, Origin] = {}
    noise: Noise | None = None
    #: What ``auto`` chose at each size of step, and why its other candidates could not run.
    choices: list[Choice] = []
    refused: dict[str, str] = {}
    graphs: GraphTimes | None = None
    #: None where there is one rank.
    exchange: Exchange | None = None
    notes: list[str] = []


class Result(Part):
    """A result file. ``ceilings`` are those of the device by its number of CPU threads; ``verdict`` is None where no
    run has times."""

    schema_: Literal[1] = Field(1, alias="schema")
    experiment: dict[str, Any]
    environment: dict[str, Any]
    ceilings: dict[str, Ceilings] | None = None
    runs: list[Run]
    comparisons: list[RunComparison] = []
    verdict: Verdicts | None = None
