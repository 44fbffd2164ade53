"""What a user asks for, validated once, for the form, the API and the command line alike.

``Experiment.model_validate(obj)`` checks the document (schema 1) and every run that it plans; what is wrong comes
back as one `SpecError` that names the field, the value and what is allowed. Torch-free.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from bench_worker.document import MAX_DOCUMENT_BYTES, decode
from bench_worker.errors import SpecError, not_one_of, shown
from bench_worker.parallel_rules import together
from bench_worker.schema_errors import SpecProblem, spec_errors
from bench_worker.spec_fields import Condition, Layout, Load, Measure, Spec, Strict, Workload
from bench_worker.spec_rules import NOT_BUILT, Library, check_run, flat

__all__ = [
    "MAX_DOCUMENT_BYTES", "NOT_BUILT", "Experiment", "Layout", "Library", "Load", "Measure", "PlannedRun", "Spec",
    "SpecError", "Workload", "diff", "flat", "parse_experiment",
]  # fmt: skip

MAX_RUNS = 256
#: Fields that tell a Hugging Face ``config.json`` from an experiment.
CONFIG_FIELDS = {"model_type", "architectures", "hidden_size"}


class Vary(Strict):
    """The one variable: a field, or a group that only means something together, and its values."""

    field: str
    values: Annotated[list[Any], Field(min_length=1, max_length=64)]

    @field_validator("field")
    @classmethod
    def _is_a_variable(cls, field: str) -> str:
        if field not in variables():
            raise SpecProblem(SpecError("vary.field", field, not_one_of(field, variables())))
        return field


@dataclass(frozen=True)
class PlannedRun:
    """One variant under one condition, with its full configuration."""

    variant: str
    condition: str
    spec: Spec


class Experiment(Strict):
    """An experiment file, schema 1."""

    schema_: Literal[1] = Field(1, alias="schema")
    title: Annotated[str, Field(min_length=1, max_length=200)] = "Untitled experiment"
    base: Spec
    vary: Vary | None = None
    conditions: Annotated[list[Condition], Field(max_length=64)] = []
    measure: Measure = Measure()

    @classmethod
    def model_validate(cls, obj: Any, *, context: Library | None = None, **kwargs: Any) -> Self:
        """Check a decoded document. Raises `SpecError`; never pydantic's own error."""
        try:
            return super().model_validate(obj, context=context or Library(), **kwargs)
        except ValidationError as error:
            first, *rest = spec_errors(error, cls)
            raise SpecError(first.field, first.value, first.message, rest) from None

    @field_validator("schema_", mode="before")
    @classmethod
    def _a_schema_is_no_truth_value(cls, schema: Any) -> Any:
        if type(schema) is not int:  # Literal[1] takes whatever equals 1
            raise SpecProblem(SpecError("schema", schema, f"{shown(schema)} is not allowed; it must be 1"))
        return schema

    @field_validator("title")
    @classmethod
    def _a_title_is_one_line(cls, title: str) -> str:
        if not title.strip() or any(unicodedata.category(c) == "Cc" for c in title):
            raise SpecProblem(SpecError("title", title, f"{shown(title)} is not one line of text"))
        return title

    @model_validator(mode="after")
    def _every_planned_run_makes_sense(self, info: Any) -> Self:
        library = info.context if isinstance(info.context, Library) else Library()
        if problems := {str(problem): problem for problem in self._problems(library)}:  # each once, not once a run
            raise SpecProblem(*problems.values())
        return self

    def variants(self) -> list[tuple[str, Spec]]:
        """``(label, configuration)`` of each value of the varied field, the first being the baseline."""
        if self.vary is None:
            return [("base", self.base)]
        variants, problems = [], []
        for value in self.vary.values:
            try:
                spec = self._varied(self.vary.field, value)
            except ValidationError as error:
                problems += [_of_a_value(problem, value) for problem in spec_errors(error, Spec)]
            else:
                variants.append((label(value), spec))
        if problems:
            raise SpecProblem(*problems)
        return variants

    def runs(self) -> list[PlannedRun]:
        """Variants × conditions, condition by condition: the variants of one condition are measured together."""
        variants = self.variants()
        also = _beside_the_corner(self.conditions)
        return [
            PlannedRun(name, condition_label(under.workload, also), under)
            for condition in self.conditions or [Condition()]
            for name, spec in variants
            for under in [_under(spec, condition)]
        ]

    def document(self) -> dict[str, Any]:
        """The experiment as its JSON document."""
        return self.model_dump(mode="json", by_alias=True)

    def _varied(self, field: str, value: Any) -> Spec:
        document = self.base.model_dump()
        *parents, leaf = field.split(".")
        target = document
        for name in parents:
            target = target[name]
        if field == "routing.strategy":  # each strategy starts from its own defaults; k is the shared budget
            document["routing"] = {"strategy": value, "top_k": self.base.routing.top_k}
        else:
            target[leaf] = value
        return Spec.model_validate(document)

    def _problems(self, library: Library) -> Iterator[SpecError]:
        """What is wrong with the plan as a whole, then with each planned run, under the field that is to blame."""
        runs, conditions = self.runs(), self.conditions or [Condition()]
        if len(runs) > MAX_RUNS:
            yield SpecError("experiment", len(runs), f"{len(runs):,} runs are planned; at most {MAX_RUNS} are allowed")
            return
        variants = len(runs) // len(conditions)
        for name in _repeated(run.variant for run in runs[:variants]):
            yield SpecError("vary.values", name, f"{shown(name)} stands there more than once; variants must differ")
        for name in _repeated(run.condition for run in runs[::variants]):
            yield SpecError("conditions", name, f"{name} stands there more than once; conditions must differ")
        yield from together(run.spec for run in runs[:variants])
        for place, run in enumerate(runs):
            for problem in check_run(run.spec, library):
                yield self._blamed(problem, place // variants, conditions[place // variants])

    def _blamed(self, problem: SpecError, place: int, condition: Condition) -> SpecError:
        """A run's ``problem`` under the field of the document that its value comes from: the varied one, that of the
        condition at ``place``, or the base's."""
        group, _, leaf = problem.field.partition(".")
        if self.vary is not None and f"{problem.field}.".startswith(f"{self.vary.field}."):
            return _of_a_value(problem, problem.value)
        if group == "workload" and getattr(condition, leaf, None) is not None:
            return SpecError(f"conditions.{place}.{leaf}", problem.value, problem.message)
        return SpecError(f"base.{problem.field}", problem.value, problem.message)


def variables() -> tuple[str, ...]:
    """Names that ``vary.field`` may take: every field outside the workload, and the groups."""
    return tuple(name for name in _leaves(Spec) if not name.startswith("workload.")) + tuple(GROUPS)


#: Groups that only mean something together, with the field that makes their other fields comparable.
GROUPS: dict[str, str | None] = {"routing": "strategy", "load": "profile", "parallel.layout": None}


def diff(spec_a: Spec, spec_b: Spec) -> list[str]:
    """Dotted names of the variables in which two configurations differ, in schema order.

    A group counts once when its fields only mean something together: a strategy with its own parameters, a load
    profile with its own, a layout with two of its sizes changed. Otherwise each field counts by itself.
    """
    a, b = flat(spec_a.model_dump()), flat(spec_b.model_dump())
    fields = [name for name in a if a[name] != b[name]]
    names: list[str] = []
    for name in fields:
        group = next((g for g in GROUPS if name.startswith(f"{g}.")), None)
        if group is not None:
            inside = [f for f in fields if f.startswith(f"{group}.")]
            key = GROUPS[group]
            if len(inside) > 1 and (key is None or f"{group}.{key}" in inside):
                name = group
        if name not in names:
            names.append(name)
    return names


def parse_experiment(data: bytes, library: Library | None = None) -> Experiment:
    """An experiment from the bytes of its file. Raises `SpecError` for every document that is not one."""
    return Experiment.model_validate(decode(data), context=library)


def read_experiment(path: Path, library: Library) -> Experiment:
    """The experiment in a file. At most one byte more than allowed is read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise SpecError("experiment", str(path), f"{path} can't be read: {error.strerror}") from None
    return parse_experiment(data, library)


def read_deployment(path: Path, library: Library) -> Experiment:
    """The experiment in a file or, where the file is a Hugging Face ``config.json``, that model with every default."""
    try:
        with path.open("rb") as file:
            document = decode(file.read(MAX_DOCUMENT_BYTES + 1))
    except (OSError, SpecError):
        document = None
    if isinstance(document, dict) and CONFIG_FIELDS & set(document) and "base" not in document:
        model = path if path.suffix == ".json" else path.absolute()
        return Experiment.model_validate({"base": {"model": str(model)}}, context=library)
    return read_experiment(path, library)


def label(value: Any) -> str:
    """A variant's name: its value, or a group's fields joined, in an order that doesn't hang on the document's."""
    if isinstance(value, dict):
        return " ".join(f"{key}={label(item)}" for key, item in sorted(value.items())) or "default"
    return "default" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def condition_label(workload: Workload, also: Iterable[str] = ()) -> str:
    """``concurrency×prompt``; without a fixed prompt length, the trace's name stands in its place. ``also`` names
    fields that tell this condition from others, beside those two."""
    prompt = workload.prompt_tokens if workload.prompt_tokens is not None else Path(workload.trace).name
    return ", ".join(
        [f"{workload.concurrency}×{prompt}", *(f"{name} {label(getattr(workload, name))}" for name in also)]
    )


def _beside_the_corner(conditions: Iterable[Condition]) -> list[str]:
    """Fields, in schema order, that any condition sets beside those of its corner, concurrency and prompt length."""
    named = {name for condition in conditions for name in condition.model_dump(exclude_none=True)}
    return [name for name in Condition.model_fields if name in named - {"concurrency", "prompt_tokens"}]


def _of_a_value(problem: SpecError, value: Any) -> SpecError:
    return SpecError("vary.values", value, str(problem))


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _under(spec: Spec, condition: Condition) -> Spec:
    changes = condition.model_dump(exclude_none=True)
    return spec.model_copy(update={"workload": spec.workload.model_copy(update=changes)})


def _leaves(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += _leaves(kind, f"{prefix}{name}.")
        else:
            names.append(f"{prefix}{name}")
    return names
