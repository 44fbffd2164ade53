"""What an expert backend can't compute whatever the device: told by the experiment alone, so without torch.

The web says it beside the form's fields, `ExpertBackend.supports` before a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench_worker import models
from bench_worker.capacity import SCALED_TOGETHER
from bench_worker.spec import Spec

#: Weights of a row that torch's quantized products read together. Its int8 one takes what is left over for a whole
#: piece: the result is wrong, or the process ends. Those of int4 share a scale.
LOOP_READS = {"int8": 16, "int4": SCALED_TOGETHER}

#: Values of ``kernels.fusion``, from the least fused to the most.
FUSIONS = ("none", "gate_up", "whole")


def with_kernels(spec: Spec, **changes: str) -> Spec:
    """``spec`` with other values of its ``kernels``."""
    return spec.model_copy(update={"kernels": spec.kernels.model_copy(update=changes)})


def refusal(backend: str, spec: Spec) -> str | None:
    """Why ``backend`` can't compute what ``spec`` asks of the experts, in one sentence that begins with the field at
    fault; None where it can on a device that has what it needs."""
    return RULES[backend](backend, spec)


def _gemms(backend: str, spec: Spec) -> str | None:
    """Two or three products an expert, the activation between them, of weights as they are."""
    if spec.kernels.quantization != "none":
        return _not_quantized(backend, spec)
    return _no_single_call(backend, spec)


def _loop(backend: str, spec: Spec) -> str | None:
    quantization = spec.kernels.quantization
    if quantization == "none":
        return _no_single_call(backend, spec)
    if spec.kernels.fusion != "gate_up":
        return (
            f"kernels.fusion: {spec.kernels.fusion!r} is not something 'loop' can do with {quantization}; use gate_up"
        )
    model = models.load(spec.model, allow_paths=True)
    for name, size in {"hidden": model.hidden, "expert intermediate": model.expert_intermediate}.items():
        if size % (together := LOOP_READS[quantization]):
            return (
                f"kernels.quantization: {quantization!r} is read in pieces of {together} weights of a row; the {name} "
                f"size of {model.name} is {size:,}, no multiple of it"
            )
    return _quantized_dtype(spec)


def _no_single_call(backend: str, spec: Spec) -> str | None:
    if spec.kernels.fusion == "whole":
        return f"kernels.fusion: 'whole' is not something {backend!r} can do; use none or gate_up"
    return None


def _not_quantized(backend: str, spec: Spec) -> str:
    quantization = spec.kernels.quantization
    others = "loop, zentorch or auto" if quantization == "int8" else "loop or auto"
    return f"kernels.quantization: {quantization!r} is not something {backend!r} can compute; use {others}"


def _quantized_dtype(spec: Spec) -> str | None:
    kernels = spec.kernels
    if kernels.quantization == "none" or kernels.dtype == "bfloat16":
        return None
    return f"kernels.quantization: {kernels.quantization!r} goes with bfloat16 rows; kernels.dtype is {kernels.dtype}"


def _zentorch(backend: str, spec: Spec) -> str | None:
    if spec.kernels.quantization not in ("none", "int8"):
        return _not_quantized(backend, spec)
    if reason := _quantized_dtype(spec):
        return reason
    if spec.kernels.dtype == "float16":
        return "kernels.experts: 'zentorch' computes in bfloat16 or float32; kernels.dtype is float16"
    model = models.load(spec.model, allow_paths=True)
    if spec.kernels.fusion == "whole" and model.expert_activation != "swiglu":
        return (
            f"kernels.fusion: 'whole' of zentorch computes SwiGLU; the experts of {model.name} use "
            f"{model.expert_activation}, so use none or gate_up"
        )
    return None


def _deepspeed_layer(backend: str, spec: Spec) -> str | None:
    """DeepSpeed's `MoE`: a gate by softmax that renormalises for k > 1 and keeps the weight as it is for k = 1."""
    name = "kernels.experts: 'deepspeed_layer'"
    if spec.kernels.quantization != "none":
        return _not_quantized(backend, spec)
    if spec.routing.strategy != "token_choice":
        return f"{name} routes by token_choice only; routing.strategy is {spec.routing.strategy}"
    if spec.routing.capacity_factor is not None:
        return f"{name} renormalises weights after dropping, as token_choice doesn't; leave capacity_factor empty"
    if spec.kernels.fusion == "whole":
        return f"{name} calls its experts one by one; kernels.fusion can be none or gate_up, not 'whole'"
    model = models.load(spec.model, allow_paths=True)
    top_k = spec.routing.top_k or model.top_k
    if model.scoring == "sigmoid" or model.route_scale != 1 or model.weight_on_input:
        return f"{name} weighs outputs by a plain softmax; {model.name} scores its experts in another way"
    if (top_k == 1) == model.renormalize:
        what = "leaves weights as they are for top_k 1" if top_k == 1 else "always renormalises weights"
        return f"{name} {what}; {model.name} does {'' if model.renormalize else 'not '}renormalise"
    return None


def _auto(backend: str, spec: Spec) -> str | None:
    """It takes each candidate with as much fusion as that can, from what is asked for upwards."""
    refused = {}
    for name in CANDIDATES:
        ways = FUSIONS[FUSIONS.index(spec.kernels.fusion) :]
        reasons = [refusal(name, with_kernels(spec, experts=name, fusion=way)) for way in ways]
        if None in reasons:
            return None
        refused[name] = reasons[0] or ""
    return nothing_runs(refused)


def bare(reason: str) -> str:
    """A reason without the name of the field that it begins with, where that is one of the kernels'."""
    field, _, sentence = reason.partition(": ")
    return sentence if field.startswith("kernels.") else reason


def nothing_runs(refused: Mapping[str, str]) -> str:
    """The sentence where ``auto`` finds every candidate ``refused``: their reasons, without what else would do."""
    reasons = [bare(reason).partition("; use ")[0] for reason in refused.values()]
    return "kernels.experts: 'auto' finds nothing that can run: " + "; ".join(dict.fromkeys(reasons))


def beyond_cpus(spec: Spec, device: str) -> str | None:
    """Why no backend computes the experts of ``spec`` on a device of another kind than ``cpu``."""
    quantization = spec.kernels.quantization
    if quantization == "none" or device == "cpu":
        return None
    return f"kernels.quantization: {quantization!r} is computed on CPUs only; this device is {device}"


#: What ``auto`` chooses from.
CANDIDATES: dict[str, Callable[[str, Spec], str | None]] = {
    "deepspeed": _gemms,
    "zentorch": _zentorch,
    "padded": _gemms,
    "loop": _loop,
}
RULES = CANDIDATES | {"deepspeed_layer": _deepspeed_layer, "auto": _auto}
