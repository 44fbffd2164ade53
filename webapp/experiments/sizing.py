"""Will it fit: the question of the capacity page, asked in its address, and the two answers to it.

The deployment on its devices, and the measurement on a machine of the pool, are answered apart: either may fit where
the other doesn't.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from django import forms

from bench_worker import capacity, devices, models, parallel_rules, spec_rules
from bench_worker.errors import not_one_of
from bench_worker.kernels import rules
from bench_worker.spec import Experiment, Library, Spec, SpecError
from webapp.experiments import fields, machines, memory
from webapp.experiments.memory_bar import MemoryBar, memory_bar
from webapp.experiments.models import Machine
from webapp.experiments.redundancy import Cost, redundancy_cost
from webapp.ui import formatting

#: The page's fields: place in the document's base, label, and what stands for an empty one.
ASKED = {
    "model": ("model", "Model", "qwen3-30b-a3b"),
    "dtype": ("kernels.dtype", "Number format", "bfloat16"),
    "quantization": ("kernels.quantization", "Format of the experts", "none"),
    "tp": ("parallel.layout.tp", "Tensor-parallel ranks", "1"),
    "dp": ("parallel.layout.dp", "Data-parallel groups", "1"),
    "redundant_experts": ("parallel.redundant_experts", "Redundant experts", "0"),
    "concurrency": ("workload.concurrency", "Concurrency", "16"),
    "prompt_tokens": ("workload.prompt_tokens", "Prompt tokens", "2048"),
    "output_tokens": ("workload.output_tokens", "Output tokens", "512"),
    "max_batch_tokens": ("workload.max_batch_tokens", "Tokens a step", "2048"),
}
#: What the page says about a field where the schema's line, which speaks of measuring, doesn't hold.
HELP = {
    "model": "A preset; or paste a config.json.",
    "redundant_experts": "Extra copies of hot experts, over all ranks.",
    "concurrency": "Requests in flight at once, over all groups.",
    "prompt_tokens": "Of every request.",
    "output_tokens": "Of every request.",
}
CLOSED = {
    "model": list(models.presets()),
    "dtype": list(capacity.DTYPE_BYTES),
    "quantization": fields.all_choices("base.kernels.quantization"),
}
#: Fields that the form of a new experiment has as well.
SHARED = ("model", "dtype", "concurrency", "prompt_tokens", "output_tokens", "max_batch_tokens")
#: And those that it has for several ranks.
RANKS = ("tp", "dp", "redundant_experts")
#: How several ranks are measured on one device: in turn.
VIRTUAL = {"mode": "virtual"}
#: And a model whose attention can't be: the MoE layers alone.
WITHOUT_ATTENTION = {"attention": "false"}
DEVICE = "H100"
#: What sentences call a model that is pasted.
OWN_MODEL = "the pasted config"
#: A config.json has a few thousand.
MAX_CONFIG_CHARACTERS = 200_000
#: Of a machine's id, which stands among the names of devices.
MACHINE = "machine-"


@dataclass(frozen=True)
class Measurement:
    """What measuring one layer takes, on ``machine``, the largest there is; None where none has registered.
    ``without_attention`` says why attention is left out, ``refused`` what else of the deployment this version can't
    measure."""

    fit: capacity.Fit
    machine: Machine | None
    without_attention: str | None
    refused: list[str]


@dataclass(frozen=True)
class Answer:
    """``ranks``: devices of the layout. ``longest_context``: tokens of a sequence at this concurrency. ``least``: where
    it doesn't fit, the least number of these devices; None where no number is enough."""

    deployment: capacity.Fit
    device: devices.Device
    ranks: int
    bar: MemoryBar
    longest_context: int
    least: devices.Enough | None
    warning: str | None
    measurement: Measurement
    #: What redundant experts take; None where there are none.
    copies: Cost | None
    #: The form of a new experiment with the same values; empty for a model that it does not offer.
    new_query: str

    @property
    def squeezed(self) -> int:
        """By how many requests at once the redundant experts squeeze the KV cache."""
        return 0 if self.copies is None else self.copies.requests or 0


class SizingForm(forms.Form):
    """What the address asks; what it leaves out or empty takes its usual value. Every text reaches the check of the
    document, whose sentences stand beside their fields."""

    #: Where the model comes from: one of the presets.
    library = Library(measures=False)

    def __init__(self, query: Mapping[str, str], *, asks: bool = True) -> None:
        """``asks``: whether there is a question to answer yet."""
        usual = {name: text for name, (_, _, text) in ASKED.items()} | {"device": DEVICE}
        given = {**query, **{name: query.get(name, "").strip() or text for name, text in usual.items()}}
        super().__init__(given if asks else None, initial=given)
        here = {f"{MACHINE}{machine.pk}": _as_device(machine) for machine in machines.latest()}
        self.devices = devices.DEVICES | here
        for name, (path, label, text) in ASKED.items():
            widget = _select(CLOSED[name]) if name in CLOSED else _number(text)
            help_text = HELP.get(name) or fields.described(f"base.{path}")
            self.fields[name] = forms.CharField(label=label, widget=widget, help_text=help_text)
        self.fields["device"] = forms.CharField(
            label="Device",
            help_text="Its memory as its maker states it, or a machine that measures here.",
            widget=forms.Select(
                choices=[
                    (key, f"{device.name} ({formatting.size(device.memory_bytes)})")
                    for key, device in self.devices.items()
                ]
            ),
        )

    def clean(self) -> None:
        if self.errors:  # a text with a character that none may have
            return
        asked: dict[str, Any] = {}
        for name, (path, _, _) in ASKED.items():
            values = fields.values_of(self.cleaned_data[name])
            fields.put(asked, path, values[0] if len(values) == 1 else self.cleaned_data[name])
        try:
            self.spec = Experiment.model_validate({"base": asked}, context=self.library).base
        except SpecError as error:
            for problem in error.errors:
                self._say(problem)
        else:
            self._divides_the_heads()
        if self.cleaned_data["device"] not in self.devices:
            self.add_error("device", not_one_of(self.cleaned_data["device"], self.devices))

    def _say(self, problem: SpecError) -> None:
        """Put the sentence beside the field that it names."""
        names = [name for name, (path, _, _) in ASKED.items() if problem.field == f"base.{path}"]
        self.add_error(names[0] if names else None, problem.message if names else str(problem))

    def _divides_the_heads(self) -> None:
        heads, tp = self._model.attention.heads, self.spec.parallel.layout.tp
        if heads % tp:
            self.add_error("tp", f"{tp} does not divide the {heads} attention heads of {self._model.name}")

    @property
    def _model(self) -> models.Model:
        return models.load(self.spec.model, allow_paths=self.library.allow_paths)

    def answer(self) -> Answer | None:
        """None where what is asked makes no sense; the form says why."""
        if not self.is_valid():
            return None
        spec, device = self.spec, self.devices[self.cleaned_data["device"]]
        deployment = capacity.fit(spec, device.memory_bytes)
        return Answer(
            deployment=deployment,
            device=device,
            ranks=_ranks(spec),
            bar=memory_bar(deployment),
            longest_context=capacity.longest_context(spec, device.memory_bytes),
            least=None if deployment.fits else devices.enough(spec, device.memory_bytes),
            warning=capacity.beyond_context(self._model, deployment.tokens_per_sequence),
            measurement=_measurement(spec, deployment.tokens_per_sequence, self.library, self._without_attention),
            copies=redundancy_cost(spec, device.memory_bytes),
            new_query="" if self.library.allow_paths else self._new_query(),
        )

    @property
    def _without_attention(self) -> str | None:
        """Why it is measured without attention; None where it is measured with it."""
        return parallel_rules.without_attention(self._model, self.spec.parallel.layout.tp)

    def _new_query(self) -> str:
        several = _ranks(self.spec) > 1
        values = {name: self.cleaned_data[name] for name in (*SHARED, *(RANKS if several else ()))}
        values |= VIRTUAL if several else {}
        if (quantization := self.spec.kernels.quantization) in fields.choices("base.kernels.quantization"):
            values |= {"quantization": quantization, "experts": _experts(self.spec)}
        return urlencode(values | (WITHOUT_ATTENTION if self._without_attention else {}))


class OwnModelForm(SizingForm):
    """The same of a Hugging Face ``config.json`` that is pasted; while it is read, it lies in ``folder``."""

    library = Library(measures=False, allow_paths=True)
    most = MAX_CONFIG_CHARACTERS

    def __init__(self, posted: Mapping[str, str], folder: Path, *, asks: bool = True) -> None:
        self._file = folder / f"{OWN_MODEL}.json"
        super().__init__({**posted, "model": str(self._file)}, asks=asks)
        self.fields["model"].widget = forms.HiddenInput()
        self.fields["config"] = forms.CharField(
            label="config.json",
            help_text="Of a Hugging Face model, as it is; it is read and not kept.",
            error_messages={"required": "Paste a config.json, or choose the file."},
            widget=forms.Textarea({"rows": 10, "spellcheck": "false", "autocomplete": "off"}),
        )
        self.order_fields(["config"])

    def clean(self) -> None:
        text = self.cleaned_data.get("config")
        if text is None:  # what is wrong with it is said already
            return
        if (wrong := _wrong_with(text)) is not None:
            self.add_error("config", wrong)
            return
        self._file.write_text(text, "utf-8")
        super().clean()


def _wrong_with(config: str) -> str | None:
    """Why a text is no config.json of a mixture of experts; None where it is one."""
    if len(config) > MAX_CONFIG_CHARACTERS:
        return f"It has {len(config):,} characters; at most {MAX_CONFIG_CHARACTERS:,} are read."
    try:
        decoded = models.decode_config(config.encode())
    except ValueError as error:
        return f"It {error}"
    try:
        models.from_config(decoded, OWN_MODEL)
    except ValueError as error:
        return str(error)
    return None


def query_of(spec: Spec, tokens_per_sequence: int) -> str:
    """The address's query that asks for the deployment of ``spec``; sequences whose length the trace decides are asked
    for at ``tokens_per_sequence``, as all prompt but for one token."""
    values = spec_rules.flat(spec.model_dump())
    query = {name: values[path] for name, (path, _, _) in ASKED.items()}
    if None in (query["prompt_tokens"], query["output_tokens"]):
        query |= {"prompt_tokens": max(1, tokens_per_sequence - 1), "output_tokens": 1}
    return urlencode(query)


def _ranks(spec: Spec) -> int:
    return spec.parallel.layout.num_ranks


def _measurement(spec: Spec, tokens_per_sequence: int, library: Library, without_attention: str | None) -> Measurement:
    """Of ``spec`` on one device, several ranks as `VIRTUAL` ones."""
    parallel = spec.parallel.model_copy(update=VIRTUAL if _ranks(spec) > 1 else {})
    kernels = spec.kernels.model_copy(update={"attention": without_attention is None, "experts": _experts(spec)})
    spec = spec.model_copy(update={"parallel": parallel, "kernels": kernels})
    try:
        Experiment.model_validate({"base": spec.model_dump()}, context=replace(library, measures=True))
        refused = [reason] if (reason := rules.refusal(kernels.experts, spec)) else []
    except SpecError as error:
        refused = [f"{problem.field.removeprefix('base.')}: {problem.message}" for problem in error.errors]
    machine = memory.largest_machine()
    free = None if machine is None else memory.device_bytes(machine.details)
    on_gpu = machine is not None and memory.on_gpu(machine.details)
    if on_gpu and (reason := rules.beyond_cpus(spec, "cuda")):
        refused.append(reason)
    fit = capacity.fit_measurement(spec, free, tokens_per_sequence=tokens_per_sequence, on_gpu=on_gpu)
    return Measurement(fit, machine, without_attention, refused)


def _experts(spec: Spec) -> str:
    """What computes the experts where ``spec`` is measured: quantized ones, what can."""
    if spec.kernels.quantization == "none":
        return spec.kernels.experts
    return "loop" if _ranks(spec) > 1 else "auto"


def _as_device(machine: Machine) -> devices.Device:
    return devices.Device(machine.name, memory.device_bytes(machine.details), "as its worker registered it")


def _select(values: list[str]) -> forms.Select:
    return forms.Select(choices=[(value, value) for value in values])


def _number(usual: str) -> forms.TextInput:
    return forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off", "placeholder": usual})
