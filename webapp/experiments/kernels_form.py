"""Asking for the table of expert backends on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, get_args

from django import forms

from bench_worker import models
from bench_worker.errors import DoesNotFit
from bench_worker.kernel_report import Asked, ask
from bench_worker.spec import SpecError
from bench_worker.spec_fields import Dtype
from webapp.experiments import memory
from webapp.experiments.fields import choices
from webapp.experiments.forms import Renderer
from webapp.experiments.models import Experiment

MODEL, TOKENS = "qwen3-30b-a3b", "1, 8, 64, 512, 2048"
#: The form's field for the place that an error names.
FIELDS = {
    "base.model": "model",
    "--tokens": "tokens",
    "base.kernels.dtype": "dtype",
    "base.load.profile": "load",
    "base.kernels.quantization": "quantization",
}


def _choice(label: str, help_text: str, values: list[str], initial: str) -> forms.CharField:
    """Any text is taken: the check of what is asked for says what is wrong with it."""
    choices = forms.Select(choices=[(value, value) for value in values])
    return forms.CharField(label=label, help_text=help_text, required=False, initial=initial, widget=choices)


class KernelsForm(forms.Form):
    """``asked`` is what it asks for, once it is valid."""

    asked: Asked
    default_renderer = Renderer

    model = _choice("Model", "One MoE layer of it.", list(models.presets()), MODEL)
    tokens = forms.CharField(
        label="Tokens",
        help_text="Tokens of a step, each a column.",
        required=False,
        initial=TOKENS,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    dtype = _choice("Number format", "Of weights and activations.", list(get_args(Dtype)), "bfloat16")
    load = _choice("Expert load", "All experts alike, or by rank.", ["uniform", "zipf"], "uniform")
    quantization = _choice(
        "Format of the experts", "Their weights as they are, or rounded.", choices("base.kernels.quantization"), "none"
    )

    @classmethod
    def like(cls, tables: Sequence[Experiment]) -> Self:
        """The form that asks for the first of ``tables`` again, where there is one."""
        if not tables:
            return cls()
        asked = tables[0].document
        return cls(initial=asked | {"tokens": ", ".join(map(str, asked["tokens"]))})

    def clean(self) -> None:
        given = self.cleaned_data
        try:
            formats = given["dtype"], given["load"], given["quantization"]
            self.asked = ask(given["model"], given["tokens"], *formats)
        except SpecError as error:
            for problem in error.errors:
                self.add_error(FIELDS.get(problem.field), problem.message)

    def fits(self, pool: str) -> bool:
        """Whether a machine of ``pool`` has memory and kernels for it, as far as is known; the form says why not."""
        try:
            memory.check_kernels(self.asked, pool)
        except DoesNotFit as error:
            self.add_error(None, str(error))
        except SpecError as error:
            self.add_error(FIELDS[error.field], error.message)
        return not self.errors
