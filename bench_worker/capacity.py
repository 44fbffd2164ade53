"""Does it fit: weights, KV cache and buffers, in bytes. Pure; torch-free.

`fit` is the deployment: the whole model on the worst rank of the layout. `fit_measurement` is what this machine must
hold to measure it: the executed layers and what stands around them. ``T`` tokens a step, ``H`` hidden, ``I`` expert
intermediate, ``E`` experts, ``k`` top-k, ``EP = TP · DP`` expert-parallel ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import fields
from math import ceil
from typing import Any

from pydantic import BaseModel, ConfigDict

from bench_worker import models, strategies
from bench_worker.kept_kernels import kept_kernels_bytes
from bench_worker.models import MLA, Model
from bench_worker.spec import Spec

__all__ = ["DTYPE_BYTES", "Fit", "beyond_context", "fit", "fit_measurement", "longest_context", "needs", "stored_bytes"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

#: Weights that share a scale: a square block of fp8 (DeepSeek-V3, 2412.19437), a group of int4 along a row (GPTQ, AWQ),
#: which has a zero point, too. An int8 row has one scale.
SCALED_TOGETHER = 128

#: Length that a request counts with where the trace decides it and nobody has read the trace yet. In the Azure 2023
#: traces (github.com/Azure/AzurePublicDataset) 92% of conversation and 86% of code requests are no longer.
TRACE_TOKENS = 4096

#: A Python process with torch and DeepSpeed loaded, and what these load with their first step (torch 2.13, CPU).
PROCESS_BYTES = 440_000_000
#: What `bench_worker.watch` reads and multiplies on a CPU, where one process measures.
PROBE_BYTES = 150_000_000
#: Tokens of the batch that is checked against the reference: enough for the kernels of large batches.
CHECK_TOKENS = 256

#: What zentorch holds packed, in copies of the experts' weights, bfloat16 and int8 alike: see docs/measurement.md.
PACKED_COPIES = 2.1
#: Parts that are no weights: the process, the kernels that it compiles, and an expert backend's own copies.
NO_WEIGHTS = frozenset({"process", "kernels", "packed"})


class Fit(BaseModel):
    """Bytes on one device. ``total_bytes = Σ parts + kv_bytes + buffers_bytes``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Bytes by part: the weights, as `bench_worker.models.Parameters` names them; in a measurement `NO_WEIGHTS`, too.
    parts: dict[str, int]
    #: The number format of each part of the weights, and of ``kv_cache``.
    formats: dict[str, str] = {}
    weights_bytes: int
    #: What one more token of one sequence takes; a sliding layer stops growing at its window.
    kv_bytes_per_token: int
    #: What a sequence of any length holds in linear-attention layers.
    state_bytes_per_sequence: int
    #: Sequences on this device at the experiment's concurrency, and the length that each is counted with.
    sequences: int
    tokens_per_sequence: int
    kv_bytes: int
    buffers_bytes: int
    total_bytes: int
    device_bytes: int | None
    #: None where the device's memory isn't known.
    fits: bool | None
    #: Sequences of that length, over all DP groups, that the device's memory has room for.
    max_concurrency: int | None


def fit(spec: Spec, device_bytes: int | None, *, tokens_per_sequence: int | None = None) -> Fit:
    """Memory of the deployment on its worst rank, against ``device_bytes`` of each device.

    Experts divide by EP, redundant copies added; attention, dense and shared FFN, embedding and head divide by TP;
    router and norms are on every rank. KV cache a token: 2 · key-value heads · head_dim a layer, heads divided by TP
    and replicated below one a rank; with MLA the latent and the rotary key, whole on every rank; at most
    ``workload.kv_tokens`` of them a DP group. Quantization is that of the experts. Buffers: the rows of
    dispatch and combine, N·H each, and the two expert intermediates, N·2I and N·I, where N is T·k or as many rows as
    the routing strategy makes; and what its selection takes, if that is much.

    ``tokens_per_sequence`` defaults to prompt + output where the workload fixes both; what the trace decides counts
    as `TRACE_TOKENS`, within the model's context.
    """
    model, tp, dp = models.load(spec.model, allow_paths=True), spec.parallel.layout.tp, spec.parallel.layout.dp
    size = DTYPE_BYTES[spec.kernels.dtype]
    experts = ceil((model.experts + spec.parallel.redundant_experts) / spec.parallel.layout.num_ranks)
    vocab = ceil(model.vocab / tp) * model.hidden
    kinds = model.attention_layers
    weights = {
        "attention": sum(n * model.attention_parameters(kind, tp) for kind, n in kinds.items()),
        "shared_experts": model.moe_layers * ceil(model.shared_parameters / tp),
        "dense_ffn": model.dense_layers * ceil(model.dense_parameters / tp),
        "router": model.moe_layers * model.router_parameters,
        "norms": (2 * model.layers + 1) * model.hidden,
        "embedding": vocab,
        "lm_head": 0 if model.tied_embeddings else vocab,
    }
    tokens = tokens_per_sequence or _workload_tokens(spec, model)
    kv_token = model.attention.kv_values(tp) * size
    cached = kinds.get("full", 0) * tokens + kinds.get("sliding", 0) * min(tokens, model.window or 0)
    state = kinds.get("linear", 0) * _state_bytes(model, size, tp)
    token_bytes = kv_token * (kinds.get("full", 0) + kinds.get("sliding", 0))
    sequences = ceil(spec.workload.concurrency / dp)
    kv_bytes = sequences * (kv_token * cached + state)
    if spec.workload.kv_tokens is not None:
        kv_bytes = min(kv_bytes, spec.workload.kv_tokens * token_bytes + sequences * state)
    rows, selection = _routed(spec, model, spec.workload.max_batch_tokens)
    return _fit(
        spec,
        parts=_parts(weights, size, model.moe_layers * experts * _expert_bytes(spec, model)),
        kv_bytes_per_token=token_bytes,
        state_bytes=state,
        sequence_bytes=kv_token * cached + state,
        sequences=sequences,
        kv_bytes=kv_bytes,
        tokens=tokens,
        buffers_bytes=rows * (2 * model.hidden + 3 * model.expert_intermediate) * size + selection,
        device_bytes=device_bytes,
        groups=dp,
    )


def fit_measurement(
    spec: Spec,
    device_bytes: int | None,
    *,
    tokens_per_sequence: int,
    prompt_tokens: int | None = None,
    on_gpu: bool = False,
) -> Fit:
    """Memory that one machine needs to execute ``spec.layers`` MoE layers, all ranks of the layout together.

    Weights: experts, shared experts and router of each executed layer; where attention is measured, one attention of
    each kind that the model has for each executed layer, and once the norms, a dense FFN if the model has any, the
    embedding and the head. KV cache: a slot of ``tokens_per_sequence`` for each request in flight (the schedule's
    longest sequence), in sliding layers too. In tensor-parallel groups heads are divided as `fit` divides them; the
    ranks of one process hold the part of each member once. Buffers, for the T tokens of the fullest step, at most those
    of all requests in flight: hidden rows [T, H], in a group the stream and what the heads add to it on each of its
    ranks, and the logits once more for each; routed rows [N, H] in and out; gate_up
    [N, 2I] and its activation [N, I]; what the selection takes; logits [sequences, vocab]; with MLA, the keys and
    values that one chunk of a prompt expands; one expert in float64 for the check against the reference. A backend that
    pads rows is counted with its fullest expert's rows for every expert. Several ranks hold the rows three
    times more: sent, arrived and come back; real ranks are a process each. The process: with what probes of the machine
    take. Kernels: those that oneDNN compiles for
    ``prompt_tokens``, of all prompts of the workload together (each as long as the longest sequence where not given);
    none ``on_gpu``, where no oneDNN computes.
    """
    model, layers = models.load(spec.model, allow_paths=True), spec.layers
    size = DTYPE_BYTES[spec.kernels.dtype]
    work, kinds, layout = spec.workload, model.attention_layers, spec.parallel.layout
    held = 0 if spec.parallel.count_only else layers
    weights = {
        "shared_experts": held * model.shared_parameters,
        "router": held * model.router_parameters,
    }
    tokens = max(CHECK_TOKENS, min(work.max_batch_tokens, work.concurrency * tokens_per_sequence))
    steps = ceil((prompt_tokens or work.requests * tokens_per_sequence) / tokens)
    kernels = 0
    if not on_gpu and not spec.parallel.count_only:
        kernels = kept_kernels_bytes(spec, model, tokens, steps=steps, tokens_per_sequence=tokens_per_sequence)
    rows, selection = _routed(spec, model, tokens)
    processes = layout.num_ranks if spec.parallel.mode == "distributed" else 1
    probed = not on_gpu and spec.parallel.mode != "distributed" and not spec.parallel.count_only
    if spec.parallel.count_only:
        rows = 0
    exchanged = 0 if spec.parallel.mode == "single" else 3 * model.hidden
    buffers = tokens * model.hidden + rows * (2 * model.hidden + 3 * model.expert_intermediate + exchanged)
    caches, state, tp = 0, 0, layout.tp
    members = 1 if spec.parallel.mode == "distributed" else tp  # of a group, in each process
    if spec.kernels.attention:
        weights |= {
            "attention": members * layers * sum(model.attention_parameters(kind, tp) for kind in kinds),
            "norms": (2 * layers * len(kinds) + 1) * model.hidden,
            "dense_ffn": members * ceil(model.dense_parameters / tp),
            "embedding": model.embedding_parameters,
            "lm_head": 0 if model.tied_embeddings else model.embedding_parameters,
        }
        buffers += (1 if tp == 1 else tp + 1) * work.concurrency * model.vocab
        buffers += 0 if tp == 1 else (2 * tp - 1) * tokens * model.hidden
        if isinstance(model.attention, MLA):
            buffers += tokens_per_sequence * model.attention.expanded_values
        caches = members * layers * sum(kind != "linear" for kind in kinds)
        state = members * layers * _state_bytes(model, size, tp)
    weights = {part: processes * count for part, count in weights.items()}  # each process holds all but its experts
    caches, state = processes * caches, processes * state
    kv_token = caches * model.attention.kv_values(tp) * size
    return _fit(
        spec,
        parts=_parts(weights, size, layers * _held_experts(spec, model) * _expert_bytes(spec, model))
        | {"process": processes * PROCESS_BYTES + probed * PROBE_BYTES, "kernels": kernels}
        | ({"packed": packed} if (packed := packed_bytes(spec)) else {}),
        kv_bytes_per_token=kv_token,
        state_bytes=state,
        sequence_bytes=kv_token * tokens_per_sequence + state,
        sequences=work.concurrency,
        kv_bytes=work.concurrency * (kv_token * tokens_per_sequence + state),
        tokens=tokens_per_sequence,
        buffers_bytes=buffers * size + selection + 8 * model.expert_parameters,
        device_bytes=device_bytes,
    )


def _held_experts(spec: Spec, model: Model) -> int:
    """Experts of a layer whose weights are held by all ranks of this machine together. Ranks in one process share
    their experts where they lie in blocks, and hold copies where they don't."""
    parallel = spec.parallel
    physical = model.experts + parallel.redundant_experts
    if parallel.count_only:
        return 0
    if parallel.mode == "distributed":
        return physical
    in_blocks = parallel.placement == "contiguous" and not parallel.redundant_experts
    return model.experts + (0 if parallel.mode == "single" or in_blocks else physical)


def packed_bytes(spec: Spec) -> int:
    """What an expert backend keeps beside the weights: zentorch packs a copy for each of its two kernels."""
    if spec.kernels.experts != "zentorch" or spec.parallel.count_only:
        return 0
    model = models.load(spec.model, allow_paths=True)
    experts = model.experts + spec.parallel.redundant_experts
    return int(PACKED_COPIES * spec.layers * experts * _expert_bytes(spec, model))


def needs(fit: Fit) -> str:
    """Both figures as the rest of a sentence: ``needs 61.1 GB and the device has 24.0 GB free`` (1 GB = 10⁹ bytes)."""
    if fit.device_bytes is None:
        return f"needs {fit.total_bytes / 1e9:,.1f} GB and the memory of the device isn't known"
    for digits in (1, 2, 3):  # as many as tell the two figures apart
        need, free = (f"{count / 1e9:,.{digits}f}" for count in (fit.total_bytes, fit.device_bytes))
        if need != free:
            break
    return f"needs {need} GB and the device has {free} GB free"


def longest_context(spec: Spec, device_bytes: int) -> int:
    """Tokens of a sequence, prompt and output, with which the deployment still fits at the experiment's concurrency: at
    most the model's context, 0 where not even one token fits."""

    def fits(tokens: int) -> bool:
        return fit(spec, device_bytes, tokens_per_sequence=tokens).total_bytes <= device_bytes

    most = models.load(spec.model, allow_paths=True).max_context
    return bisect_left(range(1, most + 1), True, key=lambda tokens: not fits(tokens))


def beyond_context(model: Model, longest: int) -> str | None:
    """A warning, where a request of ``longest`` tokens is beyond what the model was made for."""
    if longest <= model.max_context:
        return None
    return f"The longest request has {longest:,} tokens; {model.name} was made for {model.max_context:,}."


def _fit(
    spec: Spec,
    *,
    parts: dict[str, int],
    kv_bytes_per_token: int,
    state_bytes: int,
    sequence_bytes: int,
    sequences: int,
    kv_bytes: int,
    tokens: int,
    buffers_bytes: int,
    device_bytes: int | None,
    groups: int = 1,
) -> Fit:
    held = sum(parts.values()) + buffers_bytes
    total = held + kv_bytes
    if device_bytes is None:
        room = None
    elif sequence_bytes:
        room = max(0, device_bytes - held) // sequence_bytes * groups
    else:  # nothing is kept a sequence, so their number doesn't matter
        room = sequences * groups if held <= device_bytes else 0
    return Fit(
        parts=parts,
        formats=_formats(spec, parts),
        weights_bytes=sum(count for part, count in parts.items() if part not in NO_WEIGHTS),
        kv_bytes_per_token=kv_bytes_per_token,
        state_bytes_per_sequence=state_bytes,
        sequences=sequences,
        tokens_per_sequence=tokens,
        kv_bytes=kv_bytes,
        buffers_bytes=buffers_bytes,
        total_bytes=total,
        device_bytes=device_bytes,
        fits=None if device_bytes is None else total <= device_bytes,
        max_concurrency=room,
    )


def _parts(weights: dict[str, int], size: int, expert_bytes: int) -> dict[str, int]:
    """Bytes by part, in the order of `bench_worker.models.Parameters`."""
    found = {part: count * size for part, count in weights.items()} | {"experts": expert_bytes}
    return {part.name: found[part.name] for part in fields(models.Parameters) if part.name in found}


def _formats(spec: Spec, parts: dict[str, int]) -> dict[str, str]:
    dtype, quantization = spec.kernels.dtype, spec.kernels.quantization
    weights = dict.fromkeys([part for part in parts if part not in NO_WEIGHTS] + ["kv_cache"], str(dtype))
    return weights | ({} if quantization == "none" else {"experts": quantization})


def _expert_bytes(spec: Spec, model: Model) -> int:
    """One expert with the scales of its quantization; biases stay in the experiment's dtype."""
    size, hidden, inner = DTYPE_BYTES[spec.kernels.dtype], model.hidden, model.expert_intermediate
    biases = (model.expert_parameters - 3 * hidden * inner) * size
    return stored_bytes(hidden, inner, size, spec.kernels.quantization) + biases


def stored_bytes(hidden: int, inner: int, size: int, quantization: str) -> int:
    """The three matrices of an expert with ``inner`` intermediate values, in a dtype of ``size`` bytes or quantized,
    with the scales of that."""
    values = 3 * hidden * inner
    blocks, inner_blocks = ceil(hidden / SCALED_TOGETHER), ceil(inner / SCALED_TOGETHER)
    match quantization:
        case "fp8":
            return values + 4 * 3 * blocks * inner_blocks
        case "int8":
            return values + size * (2 * inner + hidden)
        case "int4":
            return values // 2 + 2 * size * (2 * inner * blocks + hidden * inner_blocks)
    return values * size


def _routed(spec: Spec, model: Model, tokens: int) -> tuple[int, int]:
    """Of the fullest step of ``tokens``: the rows that experts compute, and the bytes that selecting them takes."""
    strategy = spec.routing.strategy
    params = strategies.parameters(spec.routing, model)
    rows = strategies.routed_rows(strategy, params, tokens, model.experts)
    if spec.kernels.experts in ("padded", "deepspeed_layer"):
        rows = _padded_rows(spec, model, tokens, rows, params)
    return rows, strategies.selection_bytes(strategy, params, tokens, model.experts)


def _padded_rows(spec: Spec, model: Model, tokens: int, rows: int, params: Mapping[str, Any]) -> int:
    """Rows with padding: E times the fullest expert's, which has T at most, and under a uniform load the mean and a few
    standard deviations. Some strategies fill all experts alike."""
    mean = rows / model.experts
    if spec.routing.strategy in ("expert_choice", "soft", "balanced"):
        return model.experts * ceil(mean)
    fullest = min(tokens, ceil(mean + 6 * mean**0.5)) if spec.load.profile == "uniform" else tokens
    if (factor := params.get("capacity_factor")) is not None:
        fullest = min(fullest, strategies.capacity(tokens, model.experts, params["top_k"], factor))
    return model.experts * fullest


def _workload_tokens(spec: Spec, model: Model) -> int:
    prompt, output = spec.workload.prompt_tokens, spec.workload.output_tokens
    if prompt is not None and output is not None:
        return prompt + output
    return min(model.max_context, (prompt or 0) + (output or 0) + TRACE_TOKENS)


def _state_bytes(model: Model, size: int, tp: int = 1) -> int:
    """A sequence's state in one linear-attention layer; engines keep the recurrent part in float32."""
    if model.linear is None:
        return 0
    recurrent, convolution = model.linear.state_values(tp)
    return 4 * recurrent + size * convolution
