"""What the types of an experiment can't say about its ranks. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from bench_worker.errors import SpecError, shown
from bench_worker.models import GQA, Model
from bench_worker.parallel.layout import Layout
from bench_worker.parallel.topology import TopologyError, load_topology
from bench_worker.spec_fields import Parallel, Spec

#: Values that need several ranks, by field; with one rank only the default means something.
SEVERAL_RANKS = {
    "layout.tp": 1, "layout.dp": 1, "layout.nodes": 1, "placement": "contiguous", "redundant_experts": 0,
}  # fmt: skip


def without_model(spec: Spec, allow_paths: bool) -> Iterator[SpecError]:
    """What is wrong whatever the model is. Fields are named as inside the spec."""
    parallel = spec.parallel
    if parallel.mode == "single":
        for field, only in SEVERAL_RANKS.items():
            value = attrgetter(field)(parallel)
            if value != only:
                message = f"{shown(value)} needs several ranks; set parallel.mode to virtual or distributed, or use"
                yield SpecError(f"parallel.{field}", value, f"{message} {only}")
    if parallel.mode != "virtual":
        if parallel.topology is not None:
            message = (
                f"{shown(parallel.topology)} has no use with {parallel.mode}, whose times are real; leave it empty"
            )
            yield SpecError("parallel.topology", parallel.topology, message)
        if parallel.count_only:
            yield SpecError("parallel.count_only", True, f"True has no use with {parallel.mode}; use virtual, or false")
    if parallel.mode == "single":
        return
    layout = Layout(**parallel.layout.model_dump())
    if layout.num_ranks % layout.nodes:
        message = f"{layout.nodes} does not divide the {layout.num_ranks} ranks (tp · dp)"
        yield SpecError("parallel.layout.nodes", layout.nodes, message)
    elif parallel.mode == "virtual":
        yield from _topology(parallel, layout, allow_paths)
    if parallel.count_only and layout.num_ranks == 1:
        yield SpecError("parallel.count_only", True, "True has no use with one rank, which sends nothing")
    if spec.kernels.attention and parallel.count_only:
        message = "True has no use with count_only, which times no compute; set it to false"
        yield SpecError("kernels.attention", True, message)
    if spec.kernels.experts in ("auto", "deepspeed_layer"):
        message = f"{shown(spec.kernels.experts)} runs on one rank only; name one of deepspeed, loop, padded, zentorch"
        yield SpecError("kernels.experts", spec.kernels.experts, message)


def beyond_the_model(spec: Spec, model: Model) -> Iterator[SpecError]:
    """What is wrong with the ranks for ``model``."""
    parallel = spec.parallel
    if parallel.mode != "single" and spec.kernels.attention:
        yield from _divided_attention(parallel.layout.tp, model)
    ranks = parallel.layout.num_ranks
    extra = parallel.redundant_experts
    if parallel.mode == "single" or (model.experts + extra) % ranks == 0:
        return
    missing = -(model.experts + extra) % ranks
    if extra:
        message = f"{extra} and the {model.experts} experts of {model.name} do not divide by {ranks} ranks (tp · dp)"
        yield SpecError("parallel.redundant_experts", extra, f"{message}; {extra + missing} would")
    else:
        field, value = ("dp", parallel.layout.dp) if parallel.layout.dp > 1 else ("tp", parallel.layout.tp)
        message = f"{ranks} ranks (tp · dp) do not divide the {model.experts} experts of {model.name}"
        yield SpecError(f"parallel.layout.{field}", value, f"{message}; {missing} redundant experts would fill them up")


def without_attention(model: Model, tp: int) -> str | None:
    """Why the attention of ``model`` can't be measured in groups of ``tp`` ranks, as a phrase; None where it can."""
    return model.attention_not_measurable() or _undivided_heads(model, tp) or _undivided_norm(model, tp)


def _divided_attention(tp: int, model: Model) -> Iterator[SpecError]:
    """Why a group of ``tp`` ranks can't have the heads of ``model`` divided among them."""
    if reason := _undivided_heads(model, tp):
        able = [count for count in range(1, model.attention.heads + 1) if _undivided_heads(model, count) is None]
        message = f"{reason}; with attention it is one of {', '.join(map(str, able))}"
        yield SpecError("parallel.layout.tp", tp, message)
    elif reason := _undivided_norm(model, tp):
        message = f"True has no use with tp {tp}: {reason}; set it to false, or tp to 1"
        yield SpecError("kernels.attention", True, message)


def _undivided_heads(model: Model, tp: int) -> str | None:
    heads, kv_heads = model.attention.heads, getattr(model.attention, "kv_heads", 1)
    if heads % tp == 0 and 0 in (kv_heads % tp, tp % kv_heads):
        return None
    return (
        f"{tp} does not divide the {f'{heads} query' if heads % tp else f'{kv_heads} key-value'} heads of {model.name}"
    )


def _undivided_norm(model: Model, tp: int) -> str | None:
    if tp == 1 or not isinstance(model.attention, GQA) or model.attention.qk_norm != "width":
        return None
    return f"{model.name} norms queries over all heads together, which is not divided here"


def together(variants: Iterable[Spec]) -> Iterator[SpecError]:
    """What keeps variants from being measured together: real ranks are started once, for all of them."""
    kinds = {
        (spec.parallel.mode == "distributed", spec.parallel.layout.num_ranks): spec.parallel.mode for spec in variants
    }
    if not any(real for real, _ in kinds):
        return
    if not all(real for real, _ in kinds):
        message = "real ranks can't be compared with one device in one experiment; make two, or use virtual for all"
        yield SpecError("vary.values", "distributed", f"'distributed' beside another mode: {message}")
    elif len(kinds) > 1:
        counts = sorted(ranks for _, ranks in kinds)
        message = f"the variants have {', '.join(map(str, counts[:-1]))} and {counts[-1]} ranks"
        allowed = "real ranks are started once for all, so use one experiment for each number and compare their runs"
        yield SpecError("vary.values", counts, f"{message}; {allowed}, or use virtual")


def _topology(parallel: Parallel, layout: Layout, allow_paths: bool) -> Iterator[SpecError]:
    used = [
        domain
        for domain, is_used in (("intra_node", layout.num_ranks > layout.nodes), ("inter_node", layout.nodes > 1))
        if is_used
    ]
    try:
        load_topology(parallel.topology, allow_paths=allow_paths).require(used)
    except TopologyError as error:
        yield SpecError("parallel.topology", parallel.topology, str(error))
