"""The one list of what can compute the experts, and what each may do here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench_worker import strategies
from bench_worker.kernels import rules
from bench_worker.kernels.base import ExpertBackend, ExpertWeights, lacking
from bench_worker.kernels.deepspeed_grouped import DeepSpeedGrouped
from bench_worker.kernels.deepspeed_layer import DeepSpeedLayer
from bench_worker.kernels.loop import Loop, QuantizedLoop
from bench_worker.kernels.padded import Padded
from bench_worker.kernels.quantized import QuantizedWeights
from bench_worker.kernels.zentorch import ZenTorch
from bench_worker.models import Model
from bench_worker.spec import Spec

EXPERT_BACKENDS: dict[str, type[ExpertBackend]] = {
    "deepspeed": DeepSpeedGrouped,
    "zentorch": ZenTorch,
    "padded": Padded,
    "loop": Loop,
}

#: Values of ``kernels.experts`` that name one implementation; ``auto`` chooses among the expert backends.
NAMES = (*EXPERT_BACKENDS, "deepspeed_layer")

#: A model that no backend has to refuse: SwiGLU, softmax scores, renormalised weights.
PLAIN = "qwen3-30b-a3b"


def refusal(spec: Spec, device: torch.device) -> str | None:
    """Why ``spec``'s experts can't run on ``device``, in one sentence; None where they can."""
    name = spec.kernels.experts
    if reason := rules.beyond_cpus(spec, device.type) or lacking(spec.kernels.dtype, device):
        return reason
    if name == "deepspeed_layer":
        return DeepSpeedLayer.supports(spec, device)
    if name != "auto":
        return EXPERT_BACKENDS[name].supports(spec, device)
    found, refused = candidates(spec, device)
    return None if found else rules.nothing_runs(refused)


def report(device: torch.device) -> dict[str, dict[str, str | None]]:
    """For each value of ``kernels.experts`` and of ``kernels.fusion``: None where ``device`` can run the two together,
    else why not. Asked of `PLAIN`, so that a reason lies with the machine or with the two."""
    dtype = "bfloat16" if lacking("bfloat16", device) is None else "float32"
    plain = Spec.model_validate({"model": PLAIN, "kernels": {"dtype": dtype}})

    def reason(name: str, fusion: str) -> str | None:
        return refusal(rules.with_kernels(plain, experts=name, fusion=fusion), device)

    return {name: {fusion: reason(name, fusion) for fusion in rules.FUSIONS} for name in ("auto", *NAMES)}


def candidates(spec: Spec, device: torch.device) -> tuple[dict[str, str], dict[str, str]]:
    """What ``auto`` chooses from: the fusion of each backend that can run here, and why the others can't.

    ``kernels.fusion`` is the least that a candidate must fuse; each is taken at the most that it can.
    """
    found, refused = {}, {}
    for name, backend in EXPERT_BACKENDS.items():
        for fusion in reversed(rules.FUSIONS[rules.FUSIONS.index(spec.kernels.fusion) :]):
            reason = backend.supports(rules.with_kernels(spec, experts=name, fusion=fusion), device)
            if reason is None:
                found[name] = fusion
                break
        else:
            refused[name] = reason or ""
    return found, refused


def build(name: str, fusion: str, weights: ExpertWeights | QuantizedWeights, spec: Spec, model: Model) -> ExpertBackend:
    """The backend called ``name`` over ``weights``."""
    activation = model.expert_activation
    if name == "zentorch":
        return ZenTorch(weights, activation, fusion)
    if isinstance(weights, QuantizedWeights):
        assert name == "loop", f"the rules refuse {name}"
        return QuantizedLoop(weights, activation)
    if name == "padded":
        return Padded(weights, activation, fusion, capacity=_capacity(spec, model))
    return {"deepspeed": DeepSpeedGrouped, "loop": Loop}[name](weights, activation, fusion)


def _capacity(spec: Spec, model: Model) -> Callable[[int], int] | None:
    """The most rows that token_choice leaves an expert in a step of so many tokens; None without a capacity."""
    factor, top_k = spec.routing.capacity_factor, spec.routing.top_k or model.top_k
    if factor is None or spec.routing.strategy != "token_choice":
        return None
    return lambda tokens: strategies.capacity(tokens, model.experts, top_k, factor)
