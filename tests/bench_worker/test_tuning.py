"""How ``auto`` chooses, with layers whose times the test sets."""

import pytest
import torch

from bench_worker import models, tuning
from bench_worker.interleave import Reading
from bench_worker.network import Network
from bench_worker.planning import network_key
from bench_worker.result import Choice
from bench_worker.spec import Spec
from bench_worker.stages import LAYER
from bench_worker.tuning import choices_note, tune
from bench_worker.variant import Variant

CPU = torch.device("cpu")


@pytest.fixture
def variant(tiny_config):
    spec = Spec.model_validate(
        {"model": str(tiny_config), "kernels": {"experts": "auto", "attention": False}, "layers": 2}
    )
    return Variant(spec, Network(models.load(spec.model, allow_paths=True), network_key(spec), CPU))


@pytest.fixture
def timed(monkeypatch):
    """Small steps are fastest on ``loop``, large ones on ``padded``."""
    measured = []

    def interleaved(layers, inputs, clock, rounds, seconds):
        tokens = inputs[0].hidden.shape[0]
        measured.append((tokens, [given.hidden.shape[0] for given in inputs], list(layers)))
        us = dict.fromkeys(layers, 100.0) | ({"loop": 10.0} if tokens < 64 else {"padded": 20.0})
        return [Reading(name, 0, {LAYER: us[name] * scale}) for name in layers for scale in (1.0, 0.9, 40.0)]

    monkeypatch.setattr(tuning, "interleaved", interleaved)
    return measured


def test_candidates_are_measured_once_at_each_size_that_occurs(variant, timed):
    tune(variant, [1, 1, 2, 500, 700, 600])
    assert [(tokens, sizes) for tokens, sizes, _ in timed] == [(1, [1, 1, 1]), (512, [512] * 3)]
    assert all(names == list(variant.fusions) for *_, names in timed)


def test_every_layer_runs_on_what_had_the_least_median_time(variant, timed):
    tune(variant, [1, 512])
    assert [(choice.tokens, choice.backend, choice.fusion) for choice in variant.choices] == [
        (1, "loop", "gate_up"), (512, "padded", "gate_up")
    ]  # fmt: skip
    assert variant.choices[0].layer_us["loop"] == 10.0
    assert [variant.chosen(tokens) for tokens in (1, 8, 2048)] == ["loop", "loop", "padded"]
    for layer in variant.layers:
        assert layer.experts.at(2) is layer.experts.candidates["loop"]
        assert layer.experts.at(900) is layer.experts.candidates["padded"]


def test_the_note_says_what_was_chosen_and_what_came_second():
    choices = [
        Choice(tokens=1, backend="loop", fusion="gate_up", layer_us={"loop": 1234.0, "padded": 4000.0}),
        Choice(tokens=2048, backend="zentorch", fusion="whole", layer_us={"zentorch": 200_000.0}),
    ]
    assert choices_note(choices) == (
        "auto measured and chose loop (gate_up) at 1 tokens: 1.23 ms a layer, padded 4 ms; zentorch (whole) at 2,048 "
        "tokens: 200 ms."
    )


def test_a_backend_whose_packed_weights_do_not_fit_is_left_out(tiny_config, monkeypatch):
    from bench_worker import environment
    from bench_worker.kernels import registry

    found = {"deepspeed": "gate_up", "zentorch": "whole"}
    monkeypatch.setattr(registry, "candidates", lambda spec, device: (dict(found), {}))
    monkeypatch.setattr(environment, "available_bytes", lambda device: 1000)
    spec = Spec.model_validate({"model": str(tiny_config), "kernels": {"experts": "auto", "attention": False}})
    variant = Variant(spec, Network(models.load(spec.model, allow_paths=True), network_key(spec), CPU))
    assert list(variant.fusions) == ["deepspeed"]
    assert variant.refused["zentorch"].endswith("GB are free")
