"""What only a CUDA machine can check: ``tests/gpu/check.sh``. One JSON document, from which docs/measurement.md's GPU
table is made."""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench_worker import environment, kernel_report, kernel_table, models, reference
from bench_worker.checking import TOLERANCES
from bench_worker.cuda_steps import DecodeGraphs, idle_share, kernel_spans
from bench_worker.kernels import registry, rules
from bench_worker.network import Network
from bench_worker.planning import network_key
from bench_worker.result import LAYER_STAGES
from bench_worker.spec import Experiment, Spec
from bench_worker.stages import NoClock, StageClock
from bench_worker.step_input import StepInput
from bench_worker.step_layout import one_request
from bench_worker.variant import Variant

MODEL = "qwen3-30b-a3b"
PUBLISHED = Path(registry.__file__).with_name("published.toml")
TOKENS = (1, 16, 64, 512, 1536, 8192)
#: Seconds after which no further section begins.
LIMIT_S = 420


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--out", type=Path, help="also write the document to this file")
    out = args.parse_args().out
    document = check() if torch.cuda.is_available() else {"skipped": "there is no CUDA device here"}
    text = json.dumps(document, indent=1)
    print(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")
    return 0 if document.get("passed", True) else 1


@torch.inference_mode()
def check() -> dict[str, Any]:
    started = time.monotonic()
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "backends": backends,
        "clock": clock,
        "decode": decode,
        "kernels": kernels,
    }
    document: dict[str, Any] = {"machine": environment.machine(), "sections": {}}
    for name, section in sections.items():
        if time.monotonic() - started > LIMIT_S:
            document["sections"][name] = {"passed": False, "reason": f"{LIMIT_S} s were over before it began"}
        else:
            document["sections"][name] = section()
            torch.cuda.empty_cache()
    document["seconds"] = time.monotonic() - started
    document["passed"] = all(section["passed"] for section in document["sections"].values())
    return document


def variant(**kernels: Any) -> Variant:
    """One MoE layer of `MODEL`, alone."""
    base = {"model": MODEL, "kernels": {"attention": False, **kernels}, "load": {"profile": "zipf"}}
    spec: Spec = Experiment.model_validate({"base": base}).base
    device = environment.device()
    return Variant(spec, Network(models.load(MODEL), network_key(spec), device))


def backends() -> dict[str, Any]:
    """Every backend and fusion that may run here, against float64, for loads from even to all on k experts."""
    rows: list[dict[str, Any]] = []
    reasons: dict[str, str] = {}
    base = variant()
    for name in registry.NAMES:
        for fusion in rules.FUSIONS:
            spec = rules.with_kernels(base.spec, experts=name, fusion=fusion)
            if reason := registry.refusal(spec, base.network.device):
                reasons[f"{name} {fusion}"] = reason
                continue
            tried = Variant(spec, base.network)
            for skew in (0.0, 1.0, 30.0):
                for tokens in (1, 7, 64, 513):
                    rows.append({"backend": name, "fusion": fusion, "skew": skew, "tokens": tokens,
                                 "rel_error": error_of(tried, skew, tokens)})  # fmt: skip
    tolerance = TOLERANCES[base.spec.kernels.dtype]
    passed = bool(rows) and all(row["rel_error"] < tolerance for row in rows)
    return {"passed": passed, "tolerance": tolerance, "rows": rows, "refused": reasons}


def error_of(tried: Variant, skew: float, tokens: int) -> float:
    """Worst token's error of the first layer, with its buffer poisoned first."""
    model, device = tried.network.model, tried.network.device
    hidden, scores, _ = tried.sample(tokens, seed=tokens)
    scores = scores - skew * torch.arange(model.experts, device=device).log1p()
    tried.reserve(tokens)
    tried.buffer.poison()
    actual, _ = tried.layers[0].forward(hidden, scores, NoClock())
    weight, chosen = scores.double().softmax(dim=-1).topk(model.top_k)
    weight = weight / weight.sum(dim=-1, keepdim=True)
    experts = tried.network.experts(0)
    expected = torch.zeros(hidden.shape, dtype=torch.float64, device=device)
    for expert in chosen.unique().tolist():
        token, place = (chosen == expert).nonzero(as_tuple=True)
        x = hidden[token].double()
        gate, up = x @ experts.gate[expert].double().T, x @ experts.up[expert].double().T
        y = reference.activate(gate, up, model.expert_activation) @ experts.down[expert].double().T
        expected.index_add_(0, token, weight[token, place][:, None] * y)
    return reference.relative_error(actual, expected)


def step_of(tried: Variant, tokens: int, seed: int) -> StepInput:
    hidden, scores, _ = tried.sample(tokens, seed)
    device = tried.network.device
    return StepInput(
        one_request(tokens, device), torch.zeros(tokens, dtype=torch.int64, device=device), hidden, [scores]
    )


def clock() -> dict[str, Any]:
    """The stages' events against the profiler: their sum can't be less than the time in which kernels ran, and of a
    large step, which keeps the device busy, it is the span of its kernels."""
    tried, rows = variant(), []
    events = StageClock(tried.network.device)
    for tokens in (1, 64, 2048, 8192):
        tried.reserve(tokens)
        inputs = [step_of(tried, tokens, seed) for seed in range(3)]
        for own in inputs:
            tried.step(own, events)
        sums, spans, busy = [], [], []
        for own in inputs * 3:
            tried.step(own, events)
            sums.append(sum(us for stage, us in events.read().items() if stage.partition(".")[0] in LAYER_STAGES))
            kernels = kernel_spans(tried, own)
            span = max(end for _, end in kernels) - min(start for start, _ in kernels)
            spans.append(span)
            busy.append(span * (1 - idle_share(kernels)))
        rows.append({"tokens": tokens, "stages_us": median(sums), "kernel_span_us": median(spans),
                     "kernel_busy_us": median(busy)})  # fmt: skip
    large = [row for row in rows if row["tokens"] >= 2048]
    passed = all(row["stages_us"] >= 0.98 * row["kernel_busy_us"] for row in rows) and all(
        abs(row["stages_us"] / row["kernel_span_us"] - 1) < 0.1 for row in large
    )
    return {"passed": passed, "rows": rows}


def decode() -> dict[str, Any]:
    """Decode steps eager and as CUDA graphs: the same output, both times, and the device's idle share when eager."""
    tried, rows = variant(), []
    if not DecodeGraphs.possible(tried):
        return {"passed": False, "reason": f"{tried.spec.kernels.experts} can't be captured"}
    tried.reserve(256)
    graphs = DecodeGraphs(tried)
    for tokens in (1, 8, 64, 256):
        own = step_of(tried, tokens, seed=tokens)
        eager_us, graph_us = graphs.times_us(own.scores[0])
        captured = graphs.captured(own.scores[0])
        expected, _ = tried.layers[0].forward(captured.hidden, captured.scores, NoClock())
        captured.output.fill_(torch.nan)
        captured.graph.replay()
        same = torch.allclose(captured.output, expected, rtol=1e-2, atol=1e-2)
        idle = idle_share(kernel_spans(tried, own))
        rows.append({"tokens": tokens, "eager_us": eager_us, "graph_us": graph_us, "same": same, "idle_share": idle})
    return {"passed": all(row["same"] and row["graph_us"] <= 1.05 * row["eager_us"] for row in rows), "rows": rows}


def kernels() -> dict[str, Any]:
    """The table of backends, beside what others published for the same shapes."""
    table = kernel_table.measure(kernel_report.spec_of(MODEL, TOKENS), TOKENS, environment.device())
    published = tomllib.loads(PUBLISHED.read_text("utf-8"))[MODEL]
    shares = [row.share for row in table.rows if row.share is not None]
    passed = bool(shares) and max(shares) <= 1.05
    return {"passed": passed, "table": table.model_dump(mode="json"), "published": published}


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    sys.exit(main())
