"""What the types of an experiment can't say: values that aren't built yet, and values that only the model decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench_worker import models, parallel_rules, strategies
from bench_worker.errors import SpecError, not_one_of, shown
from bench_worker.models import Model
from bench_worker.spec_fields import Spec, Workload
from bench_worker.workload.generators import GENERATORS

#: Values that schema 1 defines and this version does not run yet, by field. Refused by name.
NOT_BUILT: dict[str, frozenset[Any]] = {
    "kernels.quantization": frozenset(["fp8"]),
}

#: Fields of the workload that mean something with one kind of arrivals only.
ARRIVALS_OF = {"rate": "poisson", "speedup": "trace"}


@dataclass(frozen=True)
class Library:
    """Names that an experiment may use beyond the built-in ones. Passed as pydantic's validation ``context``.

    ``measures`` is False where only memory is asked for: that is known for parts that this version does not run, too.
    """

    traces: frozenset[str] = frozenset()
    recordings: frozenset[str] = frozenset()
    allow_paths: bool = False
    measures: bool = True


def check_run(spec: Spec, library: Library) -> Iterator[SpecError]:
    """Everything in ``spec`` that can't be run. Fields are named as inside the spec: ``routing.top_k``."""
    if library.measures:
        yield from _not_built(spec)
        yield from parallel_rules.without_model(spec, library.allow_paths)
    yield from _workload(spec, library)
    yield from _load(spec, library)
    for problem in strategies.foreign(spec.routing):
        yield _in("routing", problem)
    try:
        model = models.load(spec.model, allow_paths=library.allow_paths)
    except ValueError as error:
        yield SpecError("model", spec.model, str(error))
    else:
        yield from _beyond_the_model(spec, model)
        if library.measures:
            yield from parallel_rules.beyond_the_model(spec, model)
        if library.measures and spec.kernels.attention and (reason := model.attention_not_measurable()):
            yield SpecError("kernels.attention", True, f"{reason}; set it to false to measure the MoE layer alone")


def _not_built(spec: Spec) -> Iterator[SpecError]:
    values = flat(spec.model_dump())
    for field, missing in NOT_BUILT.items():
        if (value := values[field]) in missing:
            yield SpecError(field, value, f"{shown(value)} is not built yet; this version runs {_built(field)}")


def _workload(spec: Spec, library: Library) -> Iterator[SpecError]:
    work = spec.workload
    if work.trace not in GENERATORS and work.trace not in library.traces and not library.allow_paths:
        message = _not_an_entry(work.trace, [*GENERATORS, *sorted(library.traces)])
        yield SpecError("workload.trace", work.trace, message)
    if work.concurrency > work.max_batch_tokens:
        yield SpecError(
            "workload.concurrency",
            work.concurrency,
            f"{work.concurrency} is above max_batch_tokens ({work.max_batch_tokens}); a step decodes one token each",
        )
    yield from _arrivals(spec)
    yield from _kv_cache(work, library)


def _arrivals(spec: Spec) -> Iterator[SpecError]:
    work = spec.workload
    for field, owner in ARRIVALS_OF.items():
        value = getattr(work, field)
        if value is not None and work.arrivals != owner:
            message = f"{shown(value)} has no use with {work.arrivals}; leave it empty, or set arrivals to {owner}"
            yield SpecError(f"workload.{field}", value, message)
    if work.arrivals == "poisson" and work.rate is None:
        yield SpecError("workload.rate", None, "is missing; poisson arrivals have a rate, in requests a second")
    if work.arrivals != "closed" and not spec.kernels.attention:
        message = f"{shown(work.arrivals)} needs the time of whole steps; set kernels.attention to true, or use closed"
        yield SpecError("workload.arrivals", work.arrivals, message)


def _kv_cache(work: Workload, library: Library) -> Iterator[SpecError]:
    if work.prefix_reuse and work.trace in GENERATORS:
        message = f"True has no use with {work.trace}, whose prompts share nothing; use a trace with hash_ids, or false"
        yield SpecError("workload.prefix_reuse", True, message)
    elif work.prefix_reuse and work.trace in library.traces:
        message = f"True has no use with {work.trace}: a kept trace has no hash_ids; name its file on the command line"
        yield SpecError("workload.prefix_reuse", True, message)
    elif work.prefix_reuse and work.prompt_tokens is not None:
        message = "True has no use with prompts of one length; leave prompt_tokens empty, or use false"
        yield SpecError("workload.prefix_reuse", True, message)
    if work.kv_tokens is not None and (
        problem := beyond_kv_cache(work, work.prompt_tokens or 1, work.output_tokens or 1)
    ):
        yield SpecError("workload.kv_tokens", work.kv_tokens, problem)


def beyond_kv_cache(work: Workload, prompt_tokens: int, output_tokens: int) -> str | None:
    """Why the KV cache can't serve a request of these lengths, or None where it can. The last token never enters it."""
    needed = prompt_tokens + output_tokens - 1
    if work.kv_tokens is None or needed <= work.kv_tokens:
        return None
    return (
        f"{work.kv_tokens:,} tokens can't hold a request of {prompt_tokens:,} prompt and {output_tokens:,} output "
        f"tokens; it leaves {needed:,} in the KV cache"
    )


def _load(spec: Spec, library: Library) -> Iterator[SpecError]:
    load = spec.load
    if load.profile != "recorded":
        if load.recording is not None:
            message = (
                f"{shown(load.recording)} has no use with {load.profile}; leave it empty, or set profile to recorded"
            )
            yield SpecError("load.recording", load.recording, message)
    elif load.recording is None:
        yield SpecError("load.recording", None, "is missing; the profile recorded replays one")
    elif load.recording not in library.recordings and not library.allow_paths:
        yield SpecError("load.recording", load.recording, _not_an_entry(load.recording, sorted(library.recordings)))


def _not_an_entry(name: str, entries: list[str]) -> str:
    if {"/", "\\", "."} & set(name):  # no entry's name has one
        return f"{shown(name)} is a file path; file paths are for the command line only"
    return not_one_of(name, entries) if entries else f"{shown(name)} is no entry; none has been imported here"


def _beyond_the_model(spec: Spec, model: Model) -> Iterator[SpecError]:
    if spec.layers > model.moe_layers:
        yield SpecError(
            "layers", spec.layers, f"{shown(spec.layers)} is above the {model.moe_layers} MoE layers of {model.name}"
        )
    filled = strategies.filled(spec.routing, model)
    for problem in strategies.problems(filled, model.experts, f" of {model.name}"):
        yield _in("routing", problem)


def _in(group: str, problem: SpecError) -> SpecError:
    return SpecError(f"{group}.{problem.field}", problem.value, problem.message)


def _built(field: str) -> str:
    """The values of a field that are built, for a sentence."""
    owner: Any = Spec
    *parents, leaf = field.split(".")
    for name in parents:
        owner = owner.model_fields[name].annotation
    allowed = owner.model_fields[leaf].annotation.__args__
    return ", ".join(value for value in allowed if value not in NOT_BUILT[field])


def flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested objects by their dotted names."""
    values: dict[str, Any] = {}
    for name, value in document.items():
        values.update(flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return values
