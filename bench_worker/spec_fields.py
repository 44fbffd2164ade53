"""The fields of an experiment (schema 1): types, bounds, defaults, and the line that the form says about each.

What a type can't say stands in `bench_worker.spec_rules`; how the fields make runs, in `bench_worker.spec`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1_000_000)]
Strategy = Literal["token_choice", "expert_choice", "dynamic", "balanced", "hash", "soft", "group_limited"]
Dtype = Literal["float32", "bfloat16", "float16"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Routing(Strict):
    """A strategy with its parameters. Which belong to which strategy is written in `bench_worker.strategies`; null
    takes the model's own value or, where a model has none, the strategy's default."""

    strategy: Strategy = Field("token_choice", description="How tokens and experts choose each other.")
    top_k: Positive | None = Field(None, description="Experts a token goes to; empty takes the model's own.")
    capacity_factor: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="An expert keeps at most ceil(factor · k · T / E) assignments; empty drops none."
    )
    scoring: Literal["softmax", "sigmoid"] | None = Field(
        None, description="What turns router logits into weights; the default is the model's own."
    )
    renormalize: bool | None = Field(
        None, description="Divide a token's weights by their sum; the default is what the model does."
    )
    route_scale: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="Multiplies every weight; empty takes the model's own."
    )
    bias: Annotated[list[float], Field(min_length=1, max_length=4096)] | None = Field(
        None, description="A number for each expert, added when choosing and never to a weight; empty adds none."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="A token takes experts until their probabilities sum to more than this; empty is 0.4."
    )
    max_experts: Positive | None = Field(None, description="Experts a token gets at most; empty is 2 · top_k.")
    solver: Literal["auction", "exact"] | None = Field(
        None, description="auction takes milliseconds; exact takes seconds to minutes a step. The default is auction."
    )
    slots_per_expert: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None, description="Rows that every expert computes; empty is T · top_k / E, the work of top-k."
    )
    num_groups: Positive | None = Field(
        None, description="Groups that the experts are divided into; empty takes the model's own, else up to 8."
    )
    topk_groups: Positive | None = Field(
        None, description="Groups that a token's experts may come from; empty takes the model's own, else half."
    )
    group_score: Literal["top2", "max"] | None = Field(
        None,
        description="A group counts by its two best experts (DeepSeek-V3) or its best (V2); scoring sets the default.",
    )


class Load(Strict):
    profile: Literal["uniform", "zipf", "recorded"] = Field(
        "zipf", description="How popular the experts are: all alike, by rank, or as recorded."
    )
    skew: Annotated[float, Field(ge=0, le=5)] = Field(
        1.0, description="zipf: weight of an expert before top-k is its rank to the power −skew."
    )
    recording: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="recorded: the expert load to replay; on the command line also the path of its file."
    )
    correlation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Chance that an expert's appeal stays from one token of a request to the next; 0 draws anew."
    )


class Layout(Strict):
    tp: Positive = Field(1, description="Tensor-parallel ranks that share one attention group.")
    dp: Positive = Field(1, description="Data-parallel attention groups.")
    nodes: Positive = Field(1, description="Machines that the ranks are spread over.")

    @property
    def num_ranks(self) -> int:
        """All of them, which the experts are spread over (EP)."""
        return self.tp * self.dp


class Parallel(Strict):
    layout: Layout = Layout()
    mode: Literal["single", "distributed", "virtual"] = Field(
        "single", description="One rank, real ranks, or ranks executed in turn on one device with a modelled network."
    )
    placement: Literal["contiguous", "round_robin", "eplb", "locality"] = Field(
        "contiguous", description="Which rank holds which expert."
    )
    redundant_experts: Annotated[int, Field(ge=0, le=4096)] = Field(0, description="Extra copies of hot experts.")
    topology: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="virtual: the network between the ranks, by name; on the command line also the path of one."
    )
    count_only: bool = Field(
        False, description="virtual: count what each rank gets and sends, without moving rows or computing experts."
    )


class Kernels(Strict):
    experts: Literal["deepspeed", "auto", "loop", "padded", "zentorch", "deepspeed_layer"] = Field(
        "deepspeed",
        description="What computes the experts: DeepSpeed's own kernels, another backend, or the fastest found here "
        "(auto).",
    )
    fusion: Literal["none", "gate_up", "whole"] = Field(
        "gate_up",
        description="gate_up computes the gate and up projections in one GEMM, none in two, whole the experts in one "
        "call. With auto, the least that a backend must fuse.",
    )
    dtype: Dtype = Field("bfloat16", description="Number format of weights and activations.")
    quantization: Literal["none", "fp8", "int8", "int4"] = Field(
        "none", description="Narrower format of the routed experts' weights."
    )
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="CPU threads; empty takes every core this process may use."
    )
    attention: bool = Field(True, description="Measure attention, embedding and head beside the MoE layer.")


class Limits(Strict):
    """The longest times with which a client is content; goodput counts the requests that meet all of them."""

    ttft_ms: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Longest time to the first token, in ms; empty: any."
    )
    tpot_ms: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Longest time per output token, in ms; empty: any."
    )
    e2e_ms: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Longest time to the last token, in ms; empty: any."
    )


class Workload(Strict):
    trace: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        "conversation", description="Where request lengths come from."
    )
    requests: Annotated[int, Field(ge=1, le=100_000)] = Field(32, description="Requests taken from the trace.")
    arrivals: Literal["closed", "trace", "poisson"] = Field(
        "closed",
        description="closed: one starts when one ends; trace: at the recorded times; poisson: at random, at a rate.",
    )
    rate: Rate | None = Field(None, description="poisson: requests a second.")
    speedup: Rate | None = Field(None, description="trace: how many times faster than recorded; empty is 1.")
    concurrency: Annotated[int, Field(ge=1, le=4096)] = Field(
        8, description="Requests in flight at once; with trace and poisson, the most of them."
    )
    prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Every prompt has this length; empty takes the trace's own."
    )
    output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Every answer has this length; empty takes the trace's own."
    )
    max_batch_tokens: Annotated[int, Field(ge=1, le=131_072)] = Field(
        2048, description="Tokens a step may hold; longer prompts are cut into chunks."
    )
    kv_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None,
        description="Tokens that the KV cache holds; where they run out, the last request is preempted. Empty: any.",
    )
    prefix_reuse: bool = Field(
        False, description="Prompts that begin alike share their KV cache; needs a trace with hash_ids (Mooncake)."
    )
    limits: Limits = Limits()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="Seed of lengths, weights and router scores.")


class Spec(Strict):
    """One configuration: what a run executes. Null takes the model's or the trace's own value."""

    model: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        ..., description="A model preset, or on the command line the path of a config.json."
    )
    layers: Positive = Field(1, description="MoE layers really executed; the whole model is scaled from them.")
    routing: Routing = Routing()
    load: Load = Load()
    parallel: Parallel = Parallel()
    kernels: Kernels = Kernels()
    workload: Workload = Workload()


class Condition(Strict):
    """One workload corner: the workload fields that it sets. The rest stays as in ``base``."""

    concurrency: Annotated[int, Field(ge=1, le=4096)] | None = None
    prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    requests: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_batch_tokens: Annotated[int, Field(ge=1, le=131_072)] | None = None
    rate: Rate | None = None
    speedup: Rate | None = None


class Measure(Strict):
    warmup_steps: Annotated[int, Field(ge=0, le=1000)] = Field(3, description="Steps run and thrown away first.")
    repeats: Annotated[int, Field(ge=1, le=100)] = Field(1, description="Times the whole schedule is measured.")
    max_seconds: Annotated[float, Field(ge=1, le=86_400)] = Field(
        600, description="Bound on the whole experiment; what it cuts is marked truncated."
    )
