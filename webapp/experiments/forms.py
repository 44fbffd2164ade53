"""The two ways to ask in the browser: fields, or the document itself. Both end in the same check."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.forms.renderers import DjangoTemplates

from bench_worker import models as presets
from bench_worker.errors import DoesNotFit
from bench_worker.parallel import topology
from bench_worker.spec import Experiment, Library, Spec, SpecError, parse_experiment
from bench_worker.spec_rules import ARRIVALS_OF
from bench_worker.strategies import STRATEGIES
from bench_worker.workload.generators import GENERATORS
from webapp.experiments import fields, models
from webapp.experiments.fields import ASKS, VARIABLES, Ask
from webapp.experiments.layout_drawing import Drawing, drawing
from webapp.experiments.memory import Outlook

NOTHING_VARIES = "nothing"
NO_RECORDING = "none"
MAX_TAGS = 10


class Renderer(DjangoTemplates):
    field_template_name = "experiments/_field.html"


class AskingForm(forms.Form):
    """What both forms share. ``experiment`` is what they ask for, once the form is valid."""

    experiment: Experiment
    refused: Sequence[str] = ()
    default_renderer = Renderer

    if TYPE_CHECKING:

        def asked(self) -> Experiment:
            """What the form says now, sent or not. Raises `SpecError`."""

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        library: Library,
        pools: Sequence[str] = (),
        pool: str | None = None,
        **kwargs: Any,
    ) -> None:
        """``pools`` are offered where there is a choice, ``pool`` first."""
        super().__init__(data, **kwargs)
        self.library = library
        if len(pools) > 1:
            self.fields["pool"] = forms.ChoiceField(
                label="Pool",
                choices=_same(pools),
                initial=pool,
                help_text="The machines that may measure it: a worker of this pool takes it.",
                error_messages={"invalid_choice": f"%(value)s is not one of {', '.join(pools)}."},
            )

    @property
    def pool_name(self) -> str | None:
        """The pool that the form names, sent or not; None where it offers none."""
        return str(self["pool"].value()) if "pool" in self.fields else None

    def clean(self) -> None:
        try:
            self.experiment = self.asked()
        except SpecError as error:
            for problem in error.errors:
                self.say(problem)

    def passes(self, check: Callable[[Experiment, str | None], None]) -> bool:
        """Whether the experiment passes ``check``, which raises `SpecError` or `DoesNotFit`; the form says why not."""
        try:
            check(self.experiment, self.pool_name)
        except SpecError as error:
            self.say(error)
        except DoesNotFit as error:
            self.add_error(None, str(error))
        return not self.errors

    def outlook(self, look: Callable[[Experiment, str | None], Outlook]) -> Outlook | None:
        """What the experiment would take as the form stands; None while it asks for nothing that can be run, and
        ``refused`` then says why."""
        try:
            return look(self.asked(), self.pool_name)
        except SpecError as error:
            self.refused = [
                problem.message if problem.field == "document" else str(problem) for problem in error.errors
            ]
            return None

    @property
    def spec(self) -> Spec | None:
        """The base that the form asks for as it stands; None while that is nothing that can be run."""
        try:
            return self.asked().base
        except SpecError:
            return None

    def say(self, problem: SpecError) -> None:
        """Put the sentence where a reader looks for it."""
        self.add_error(None, str(problem))


@dataclass(frozen=True)
class Fold:
    """Fields behind a line that opens them."""

    summary: str
    members: list[forms.BoundField]

    @property
    def open(self) -> bool:
        """Whether one of them is wrong, or says something else than usual."""
        return any(field.errors or (field.value() or "") != field.field.initial for field in self.members)


class ExperimentForm(AskingForm):
    """The document's fields as texts."""

    def __init__(self, data: Mapping[str, Any] | None = None, *, library: Library, **kwargs: Any) -> None:
        super().__init__(data, library=library, **kwargs)
        self.fields["title"] = _text("Title", "Empty: made from the model and what changes.")
        for ask in ASKS:
            self.fields[ask.name] = _field(ask, library)
        self.fields["vary_field"] = _text("What changes", "The one variable.", forms.Select(choices=_variables()))
        varied = str(self["vary_field"].value() or "")
        self.fields["vary_values"] = _text("Its values", fields.values_help(varied))

    @classmethod
    def showing(cls, document: Mapping[str, Any], library: Library, **where: Any) -> Self | None:
        """The form that asks for ``document``, or None where its fields can't say all of it."""
        try:
            texts = fields.texts_of(Experiment.model_validate(document, context=library), library)
        except SpecError:
            return None
        return None if texts is None else cls(library=library, initial=texts, **where)

    @classmethod
    def comparing_strategies(cls, texts: Mapping[str, Any], library: Library, **where: Any) -> Self:
        """The form with ``texts``, but for what changes: every routing strategy in turn."""
        return cls(library=library, initial={**texts, **fields.all_strategies()}, **where)

    @property
    def document(self) -> dict[str, Any]:
        """The document that the texts make, checked or not."""
        return fields.build_document({name: str(self[name].value() or "") for name in self.fields})

    @property
    def what(self) -> list[forms.BoundField]:
        return self._section("what")

    @property
    def ranks(self) -> list[forms.BoundField]:
        return self._section("ranks")

    @property
    def routing(self) -> list[forms.BoundField]:
        return self._section("routing")

    @property
    def more_of_the_model(self) -> Fold:
        return Fold("More on kernels and routing", self._section("what", "routing", folded=True))

    @property
    def load(self) -> list[forms.BoundField]:
        return self._section("load")

    @property
    def more_of_the_load(self) -> Fold:
        return Fold("Arrivals, KV cache and latency limits", self._section("load", "limits", folded=True))

    @property
    def advanced(self) -> Fold:
        return Fold("Advanced", self._section("advanced"))

    def _section(self, *names: fields.Section, folded: bool = False) -> list[forms.BoundField]:
        return [self[ask.name] for ask in ASKS if ask.section in names and ask.folded == folded]

    def asked(self) -> Experiment:
        return Experiment.model_validate(self.document, context=self.library)

    @cached_property
    def layout(self) -> Drawing | None:
        """Its ranks as they would stand, even where they can't; None while the form asks for no model."""
        try:
            base = Spec.model_validate(self.document["base"])
            return drawing(base.parallel, presets.load(base.model).experts)
        except (KeyError, ValueError):
            return None

    def say(self, problem: SpecError) -> None:
        """Put the sentence beside its field; at the top, with the field's full name, where the form has none."""
        name = fields.form_field(problem.field)
        if name is None:
            self.add_error(None, str(problem))
        elif problem.message not in self.errors.get(name, []):
            self.add_error(name, problem.message)


class DocumentForm(AskingForm):
    """The experiment file pasted as it is."""

    document = forms.CharField(
        label="Experiment",
        help_text="The experiment file, schema 1, as JSON.",
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 28, "spellcheck": "false"}),
    )

    @classmethod
    def showing(cls, document: Mapping[str, Any], library: Library, **where: Any) -> Self:
        text = json.dumps(fields.in_order(document), indent=2, ensure_ascii=False)
        return cls(library=library, initial={"document": text}, **where)

    def asked(self) -> Experiment:
        return parse_experiment(str(self["document"].value() or "").encode(), self.library)

    def say(self, problem: SpecError) -> None:
        self.add_error("document", str(problem))


class DescriptionForm(forms.Form):
    """The words about an experiment: nothing of what was measured."""

    title = forms.CharField(
        max_length=200,
        validators=[RegexValidator(r"^[^\x00-\x1f\x7f-\x9f]*\Z", "A title is one line of text.")],
        widget=forms.TextInput(attrs={"autocomplete": "off", "autofocus": True}),
    )
    tags = forms.CharField(
        required=False,
        help_text=f"Separated by commas or blanks; at most {MAX_TAGS}.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    notes = forms.CharField(
        required=False, max_length=10_000, help_text="What to remember about it.", widget=forms.Textarea({"rows": 4})
    )
    default_renderer = Renderer

    @classmethod
    def showing(cls, row: models.Experiment) -> Self:
        return cls(initial={"title": row.title, "tags": ", ".join(row.tags), "notes": row.notes})

    def clean_tags(self) -> list[str]:
        """In lower case, each once, in the order in which they were typed."""
        tags = list(dict.fromkeys(re.split(r"[,\s]+", self.cleaned_data["tags"].lower().strip(", "))))
        if tags == [""]:
            return []
        for tag in tags:
            if not re.fullmatch(r"[\w./+-]{1,40}", tag):
                raise ValidationError(
                    f"{tag!r} is not allowed; a tag has 1 to 40 letters, digits, dots, dashes, slashes or underscores."
                )
        if len(tags) > MAX_TAGS:
            raise ValidationError(f"{len(tags)} tags are given; at most {MAX_TAGS} are allowed.")
        return tags


def _text(label: str, help_text: str, widget: forms.Widget | None = None, initial: str = "") -> forms.CharField:
    """A field that takes any text: the document's own check says what is wrong with it."""
    return forms.CharField(
        label=label,
        help_text=help_text,
        required=False,
        strip=True,
        initial=initial,
        widget=widget or forms.TextInput(attrs={"autocomplete": "off"}),
    )


def _field(ask: Ask, library: Library) -> forms.CharField:
    initial = ask.initial or fields.default(ask.path)
    widget: forms.Widget | None = None
    if ask.name == "trace":
        widget = forms.Select(choices=_same([*GENERATORS, *sorted(library.traces)]))
    elif ask.name == "recording":
        widget = forms.Select(choices=[("", NO_RECORDING), *_same(sorted(library.recordings))])
    elif ask.name == "topology":
        widget = forms.Select(choices=[("", f"default ({topology.DEFAULT})"), *_same(list(topology.builtin()))])
    elif ask.kind in ("choice", "bool"):
        widget = forms.Select(choices=_choices(ask))
    elif ask.kind == "number":
        widget = forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"})
    field = _text(ask.label, fields.described(ask.path), widget, initial)
    field.takers = " ".join(fields.takers(ask))  # type: ignore[attr-defined]  # for the template
    field.arrivals = ARRIVALS_OF.get(ask.name)  # type: ignore[attr-defined]  # as well
    field.modes = " ".join(fields.modes(ask))  # type: ignore[attr-defined]  # as well
    field.is_limit = fields.is_limit(ask)  # type: ignore[attr-defined]  # as well
    return field


def _choices(ask: Ask) -> list[tuple[str, str]]:
    default = [("", "default")] if fields.can_be_empty(ask.path) else []
    if ask.kind == "bool":
        return [*default, ("true", "yes"), ("false", "no")]
    if ask.path == fields.STRATEGY:
        return [(name, name if strategy.causal else f"{name} (non-causal)") for name, strategy in STRATEGIES.items()]
    return [*default, *_same(fields.choices(ask.path))]


def _variables() -> list[tuple[str, Any]]:
    """What may vary, by the part of the document that it stands in; a whole part comes after its fields."""
    groups: dict[str, list[tuple[str, str]]] = {"model": [], "parallel": [], "routing": [], "load": [], "kernels": []}
    for ask in VARIABLES:
        name = ask.path.removeprefix("base.")
        group = name.partition(".")[0]
        groups[group if group in groups else "model"].append((name, ask.label))
    for name in fields.GROUPS:
        groups[name.partition(".")[0]].append((name, f"{name}, several fields together"))
    return [("", NOTHING_VARIES), *((name.capitalize(), options) for name, options in groups.items())]


def _same(values: Sequence[str]) -> list[tuple[str, str]]:
    return [(value, value) for value in values]
