"""What the form asks, and the experiment document (schema 1) that its texts make. Pure.

Each `Ask` is one field of the document; its help and its choices come from `bench_worker.spec`, where the field is
defined. Texts stay as they were typed when they are no numbers: the document's own check then says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bench_worker import models
from bench_worker.spec import Experiment, Library, SpecError
from bench_worker.spec_rules import ARRIVALS_OF, NOT_BUILT
from bench_worker.strategies import NON_CAUSAL, STRATEGIES

#: ``list``: values, of each of which a condition is made, or `DOUBLING`; ``numbers``: values of one field.
Kind = Literal["choice", "number", "text", "bool", "list", "numbers"]
Section = Literal["what", "ranks", "routing", "load", "limits", "advanced"]


@dataclass(frozen=True)
class Ask:
    """One field of the form. ``path`` is its place in the document; a list makes conditions instead. ``folded`` fields
    stand behind a line that opens them, since most experiments leave them alone."""

    name: str
    path: str
    section: Section
    kind: Kind
    label: str
    initial: str = ""
    folded: bool = False


STRATEGY = "base.routing.strategy"
ARRIVALS = "base.workload.arrivals"
MODE = "base.parallel.mode"
#: Fields of the ranks that mean something only where they are virtual.
VIRTUAL = ("topology", "count_only")
ASKS = (
    Ask("model", "base.model", "what", "choice", "Model", "olmoe-1b-7b"),
    Ask("layers", "base.layers", "what", "number", "MoE layers", "1"),
    Ask("experts", "base.kernels.experts", "what", "choice", "Expert kernels"),
    Ask("dtype", "base.kernels.dtype", "what", "choice", "Number format"),
    Ask("quantization", "base.kernels.quantization", "what", "choice", "Format of the experts"),
    Ask("fusion", "base.kernels.fusion", "what", "choice", "Fusion", folded=True),
    Ask("attention", "base.kernels.attention", "what", "bool", "Attention too", folded=True),
    Ask("mode", MODE, "ranks", "choice", "Ranks"),
    Ask("tp", "base.parallel.layout.tp", "ranks", "number", "Tensor-parallel ranks"),
    Ask("dp", "base.parallel.layout.dp", "ranks", "number", "Data-parallel groups"),
    Ask("nodes", "base.parallel.layout.nodes", "ranks", "number", "Nodes"),
    Ask("placement", "base.parallel.placement", "ranks", "choice", "Placement"),
    Ask("redundant_experts", "base.parallel.redundant_experts", "ranks", "number", "Redundant experts"),
    Ask("topology", "base.parallel.topology", "ranks", "choice", "Network"),
    Ask("count_only", "base.parallel.count_only", "ranks", "bool", "Only count"),
    Ask("strategy", STRATEGY, "routing", "choice", "Routing strategy"),
    Ask("top_k", "base.routing.top_k", "routing", "number", "Experts a token"),
    Ask("capacity_factor", "base.routing.capacity_factor", "routing", "number", "Capacity factor", folded=True),
    Ask("top_p", "base.routing.top_p", "routing", "number", "Probability to gather"),
    Ask("max_experts", "base.routing.max_experts", "routing", "number", "Most experts a token"),
    Ask("solver", "base.routing.solver", "routing", "choice", "Solver"),
    Ask("slots_per_expert", "base.routing.slots_per_expert", "routing", "number", "Slots an expert"),
    Ask("num_groups", "base.routing.num_groups", "routing", "number", "Groups of experts"),
    Ask("topk_groups", "base.routing.topk_groups", "routing", "number", "Groups a token"),
    Ask("group_score", "base.routing.group_score", "routing", "choice", "Group score"),
    Ask("scoring", "base.routing.scoring", "routing", "choice", "Scoring", folded=True),
    Ask("renormalize", "base.routing.renormalize", "routing", "bool", "Renormalize", folded=True),
    Ask("route_scale", "base.routing.route_scale", "routing", "number", "Scale of weights", folded=True),
    Ask("bias", "base.routing.bias", "routing", "numbers", "Bias of experts", folded=True),
    Ask("trace", "base.workload.trace", "load", "choice", "Request trace"),
    Ask("requests", "base.workload.requests", "load", "number", "Requests", "16"),
    Ask("concurrency", "base.workload.concurrency", "load", "list", "Concurrency", "1, 16"),
    Ask("prompt_tokens", "base.workload.prompt_tokens", "load", "list", "Prompt tokens", "128, 2048"),
    Ask("output_tokens", "base.workload.output_tokens", "load", "number", "Output tokens", "16"),
    Ask("arrivals", ARRIVALS, "load", "choice", "Arrivals", folded=True),
    Ask("rate", "base.workload.rate", "load", "list", "Requests a second", folded=True),
    Ask("speedup", "base.workload.speedup", "load", "list", "Speed-up", folded=True),
    Ask("profile", "base.load.profile", "load", "choice", "Expert load"),
    Ask("skew", "base.load.skew", "load", "number", "Skew"),
    Ask("correlation", "base.load.correlation", "load", "number", "Correlation", folded=True),
    Ask("recording", "base.load.recording", "load", "choice", "Recording"),
    Ask("kv_tokens", "base.workload.kv_tokens", "limits", "number", "KV cache, tokens", folded=True),
    Ask("limit_ttft_ms", "base.workload.limits.ttft_ms", "limits", "number", "TTFT limit, ms", folded=True),
    Ask("limit_tpot_ms", "base.workload.limits.tpot_ms", "limits", "number", "TPOT limit, ms", folded=True),
    Ask("limit_e2e_ms", "base.workload.limits.e2e_ms", "limits", "number", "End-to-end limit, ms", folded=True),
    Ask("max_batch_tokens", "base.workload.max_batch_tokens", "advanced", "number", "Tokens a step"),
    Ask("threads", "base.kernels.threads", "advanced", "number", "CPU threads"),
    Ask("seed", "base.workload.seed", "advanced", "number", "Seed"),
    Ask("warmup_steps", "measure.warmup_steps", "advanced", "number", "Warm-up steps"),
    Ask("repeats", "measure.repeats", "advanced", "number", "Repeats"),
    Ask("max_seconds", "measure.max_seconds", "advanced", "number", "Most seconds"),
)
#: Those that may be the one variable.
VARIABLES = tuple(ask for ask in ASKS if not ask.path.startswith(("base.workload", "measure")))
#: Variables that are several fields together, with an example of a value.
GROUPS = {
    "routing": '{"strategy": "dynamic", "top_p": 0.6}',
    "load": '{"profile": "zipf", "skew": 1.5}',
    "parallel.layout": '{"tp": 2, "dp": 4}',
}

#: Of a list that makes conditions: ``1..64`` doubles from one to the other, the most being the last.
DOUBLING = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_NUMBER = re.compile(r"[+-]?(\d+|\d*\.\d+|\d+\.)([eE][+-]?\d+)?")


def described(path: str) -> str:
    """The one line that the schema says about a field."""
    return _field(path).description or ""


def choices(path: str) -> list[str]:
    """What a closed field offers in this version; empty for an open one."""
    if path == "base.model":
        return list(models.presets())
    return [value for value in all_choices(path) if value not in NOT_BUILT.get(path.removeprefix("base."), ())]


def all_choices(path: str) -> list[str]:
    """What a closed field of the schema takes, built in this version or not."""
    return [value for value in _literals(_field(path).annotation) if isinstance(value, str)]


def can_be_empty(path: str) -> bool:
    """Whether null is a value of the field: the model's own, or the strategy's default."""
    return _field(path).default is None


def takers(ask: Ask) -> tuple[str, ...]:
    """The strategies that have use for a field of the routing; none for any other field."""
    if ask.section != "routing":
        return ()
    return tuple(
        name for name, strategy in STRATEGIES.items() if ask.path == STRATEGY or ask.name in strategy.parameters
    )


def modes(ask: Ask) -> tuple[str, ...]:
    """The modes of ranks that have use for a field; none where every mode has, or it is no field of the ranks."""
    if ask.section != "ranks" or ask.path == MODE:
        return ()
    return ("virtual",) if ask.name in VIRTUAL else tuple(mode for mode in all_choices(MODE) if mode != "single")


def is_limit(ask: Ask) -> bool:
    """Whether it bounds a latency of requests."""
    return ask.path.startswith("base.workload.limits.")


def default(path: str) -> str:
    """The schema's default as the form would show it."""
    value = _field(path).get_default()
    return "" if value is None or not isinstance(value, (str, int, float)) else as_text(value)


def build_document(texts: Mapping[str, str]) -> dict[str, Any]:
    """The document that the form's texts ask for. An empty text leaves the field to its default, and what has no
    use beside the others stays out: the form does not show it."""
    document: dict[str, Any] = {"schema": 1}
    useful = [ask for ask in ASKS if not _is_foreign(ask, texts)]
    for ask in useful:
        text = texts.get(ask.name, "").strip()
        if text and ask.kind != "list":
            put(document, ask.path, _value_of(ask, text))
    document["conditions"] = _conditions(
        {ask.name: _listed(texts.get(ask.name, "")) for ask in useful if ask.kind == "list"}
    )
    vary = {"field": texts.get("vary_field", "").strip(), "values": values_of(texts.get("vary_values", ""))}
    if any(vary.values()):
        document["vary"] = {key: value for key, value in vary.items() if value}
    document["title"] = texts.get("title", "").strip() or title_of(document)
    return document


def in_order(document: Mapping[str, Any], schema: type[BaseModel] = Experiment) -> dict[str, Any]:
    """``document`` with its fields in the schema's order, which Postgres does not keep."""
    ordered = {}
    for name, field in schema.model_fields.items():
        key = field.alias or name
        if key in document:
            value, kind = document[key], field.annotation
            if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
                value = in_order(value, kind)
            ordered[key] = value
    return ordered


def texts_of(experiment: Experiment, library: Library) -> dict[str, str] | None:
    """The texts that make ``experiment`` again, or None where the form can't say all of it."""
    document = experiment.document()
    texts = {ask.name: as_text(_get(document, ask.path)) for ask in ASKS if ask.kind != "list"}
    for ask in ASKS:
        if ask.kind == "list":
            usual = _get(document, ask.path)
            set_ = [condition[ask.name] for condition in document["conditions"]] or [None]
            found = dict.fromkeys(usual if value is None else value for value in set_)
            texts[ask.name] = ", ".join(as_text(value) for value in found if value is not None)
    if document["vary"]:
        texts["vary_field"] = document["vary"]["field"]
        texts["vary_values"] = _values_text(document["vary"]["values"])
    texts["title"] = document["title"]
    try:
        again = Experiment.model_validate(build_document(texts), context=library)
    except SpecError:
        return None
    return texts if _plans(again) == _plans(experiment) else None


def _plans(experiment: Experiment) -> tuple[Any, ...]:
    """All that an experiment comes to, whether its base or each of its conditions says so."""
    runs = [(run.condition, run.spec) for run in experiment.runs()]
    return experiment.title, experiment.vary, experiment.measure, runs


def form_field(path: str) -> str | None:
    """The form's field for the place that an error names; None where the form has none."""
    if path in ("title", "schema"):
        return "title" if path == "title" else None
    if path.startswith("vary"):
        return "vary_field" if path == "vary.field" else "vary_values"
    if path.startswith("conditions."):
        leaf = path.rpartition(".")[2]
        return next((ask.name for ask in ASKS if ask.kind == "list" and ask.name == leaf), None)
    return next((ask.name for ask in ASKS if ask.path == path), None)


def values_of(text: str) -> list[Any]:
    """Values of the one variable, separated by commas or blanks; ``default`` is null; objects stand in a JSON list."""
    text = text.strip()
    if text.startswith("["):
        try:
            decoded = json.loads(text)
        except json.JSONDecodeError:
            return [text]
        return decoded if isinstance(decoded, list) else [decoded]
    return [None if token == "default" else token for token in _tokens(text)]


def values_help(field: str) -> str:
    """How the values of the variable ``field`` are typed, and which there are where the field is a closed one."""
    if field in GROUPS:
        return f"A JSON list, such as [{GROUPS[field]}]; the first is the baseline."
    ask = next((ask for ask in VARIABLES if ask.path == f"base.{field}"), None)
    allowed = [] if ask is None else ["true", "false"] if ask.kind == "bool" else choices(ask.path)
    if ask is not None and allowed and can_be_empty(ask.path):
        allowed = ["default", *allowed]
    sentences = ["Separated by commas; the first is the baseline."]
    if allowed:
        sentences.append(f"Of {', '.join(allowed)}.")
    if ask is not None and ask.path == STRATEGY:
        looking_ahead = " and ".join(name for name, strategy in STRATEGIES.items() if not strategy.causal)
        sentences.append(f"Each starts from its own defaults. Non-causal: {looking_ahead}; {NON_CAUSAL}.")
    return " ".join(sentences)


def offered() -> list[str]:
    """What may vary, as ``vary.field`` names it."""
    return [*(ask.path.removeprefix("base.") for ask in VARIABLES), *GROUPS]


def all_strategies() -> dict[str, str]:
    """The texts that vary the routing over every strategy."""
    return {"vary_field": STRATEGY.removeprefix("base."), "vary_values": ", ".join(choices(STRATEGY))}


def title_of(document: Mapping[str, Any]) -> str:
    """A title for an experiment that was given none: the model, and what changes."""
    model = str(document.get("base", {}).get("model", ""))[:100] or "Untitled experiment"
    vary = document.get("vary")
    if not vary:
        return model
    return f"{model}: {str(vary.get('field', '')).rpartition('.')[2]} {_values_text(vary.get('values', []))}"[:200]


def as_text(value: Any) -> str:
    """A value as the form shows it."""
    if value is None:
        return ""
    if isinstance(value, list):
        return _values_text(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at a dotted ``path``."""
    *parents, leaf = path.split(".")
    for name in parents:
        document = document.setdefault(name, {})
    document[leaf] = value


def _conditions(corners: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Every combination of the lists that have values; the first list changes fastest."""
    named = {name: values for name, values in corners.items() if values}
    combinations = product(*reversed(named.values())) if named else ()
    return [dict(zip(named, reversed(combination), strict=True)) for combination in combinations]


def _values_text(values: list[Any]) -> str:
    if any(isinstance(value, (dict, list)) for value in values):
        return json.dumps(values)
    return ", ".join("default" if value is None else as_text(value) for value in values)


def _is_foreign(ask: Ask, texts: Mapping[str, str]) -> bool:
    """Whether a field has no use: for the chosen strategy, for the chosen arrivals or ranks, or without attention,
    without which requests have no latencies."""
    strategy, arrivals, attention = (texts.get(name, "").strip() for name in ("strategy", "arrivals", "attention"))
    if ask.section == "routing":
        return strategy in STRATEGIES and strategy not in takers(ask)
    if is_limit(ask):
        return attention == "false"
    if of := modes(ask):
        return texts.get("mode", "").strip() not in of
    return arrivals in choices(ARRIVALS) and ARRIVALS_OF.get(ask.name, arrivals) != arrivals


def _value_of(ask: Ask, text: str) -> Any:
    if ask.kind in ("choice", "text"):
        return text
    return values_of(text) if ask.kind == "numbers" else _value(text)


def _listed(text: str) -> list[Any]:
    """The values of a list that makes conditions, in order."""
    return [value for token in _tokens(text) for value in _doubled(token)]


def _doubled(token: Any) -> list[Any]:
    """``1..100`` as 1, 2, 4, … 64, 100. What does not rise from 1 or more stays as it is, for the check to name it."""
    found = DOUBLING.fullmatch(token) if isinstance(token, str) else None
    if found is None or not 0 < int(found[1]) < int(found[2]):
        return [token]
    value, most = int(found[1]), int(found[2])
    values = []
    while value < most:
        values.append(value)
        value *= 2
    return [*values, most]


def _tokens(text: str) -> list[Any]:
    return [_value(token) for token in re.split(r"[,\s]+", text) if token]


def _value(text: str) -> Any:
    """A number or a truth value where the text is one, else the text itself."""
    if text in ("true", "false"):
        return text == "true"
    if not _NUMBER.fullmatch(text):
        return text
    return int(text) if text.lstrip("+-").isdigit() and len(text) < 30 else float(text)


def _literals(annotation: Any) -> Iterator[Any]:
    """The values of a Literal, which may stand in a union."""
    for part in get_args(annotation):
        yield from _literals(part) if get_origin(part) is Literal else (part,)


def _get(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _field(path: str) -> FieldInfo:
    owner: type[BaseModel] = Experiment
    *parents, leaf = path.split(".")
    for name in parents:
        annotation = owner.model_fields[name].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        owner = annotation
    return owner.model_fields[leaf]
