"""Inputs are fresh every step, the same for every variant, and repeatable."""

import pytest
import torch

from bench_worker import models
from bench_worker.network import Network
from bench_worker.planning import network_key
from bench_worker.spec import Experiment, Library, Load
from bench_worker.step_input import StepSource
from bench_worker.step_layout import Segment, StepLayout

CPU = torch.device("cpu")
LAYOUT = StepLayout([Segment(0, 0, 6, 0)], torch.zeros(6, dtype=torch.int64), torch.arange(6), torch.tensor([5]))


def network(tiny_config, attention):
    base = {"model": str(tiny_config), "layers": 2, "kernels": {"attention": attention}}
    spec = Experiment.model_validate({"base": base}, context=Library(allow_paths=True)).base
    return Network(models.load(spec.model, allow_paths=True), network_key(spec), CPU)


def test_the_same_step_has_the_same_inputs_and_another_step_has_others(tiny_config):
    net = network(tiny_config, attention=False)
    source = StepSource(seed=3)
    first, again, other = (source.make(net, Load(), step, LAYOUT) for step in (5, 5, 6))
    for name in ("token_ids", "hidden"):
        assert torch.equal(getattr(first, name), getattr(again, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))
    assert torch.equal(first.scores[0], again.scores[0])
    assert not torch.equal(first.scores[0], other.scores[0])
    assert not torch.equal(first.scores[0], first.scores[1])


def test_hidden_states_are_made_only_where_no_attention_makes_them(tiny_config):
    source = StepSource(seed=0)
    assert source.make(network(tiny_config, attention=False), Load(), 0, LAYOUT).hidden.shape == (6, 64)
    inputs = source.make(network(tiny_config, attention=True), Load(), 0, LAYOUT)
    assert inputs.hidden.shape == (0, 64)
    assert int(inputs.token_ids.max()) < 256
    assert [scores.shape for scores in inputs.scores] == [(6, 8), (6, 8)]


def test_token_ids_are_as_frequent_as_words(tiny_config):
    long = StepLayout([Segment(0, 0, 40_000, 0)], torch.zeros(40_000), torch.arange(40_000), torch.tensor([0]))
    ids = StepSource(seed=1).make(network(tiny_config, attention=True), Load(), 0, long).token_ids
    counts = torch.bincount(ids, minlength=256).sort(descending=True).values.double() / 40_000
    harmonic = sum(1 / n for n in range(1, 257))
    for rank in (1, 2, 3, 10):  # the n-th most frequent word at 1/n of the first
        assert float(counts[rank - 1]) == pytest.approx(1 / rank / harmonic, rel=0.1)
    assert int(ids.max()) < 256


def test_another_seed_has_other_hot_words(tiny_config):
    net = network(tiny_config, attention=True)
    long = StepLayout([Segment(0, 0, 5000, 0)], torch.zeros(5000), torch.arange(5000), torch.tensor([0]))
    hottest = {int(StepSource(seed).make(net, Load(), 0, long).token_ids.mode().values) for seed in range(8)}
    assert len(hottest) > 4


def test_a_step_of_the_same_load_is_made_once_for_all_variants(tiny_config):
    net, source = network(tiny_config, attention=True), StepSource(seed=0)
    one, other = (source.make(net, Load(), 3, LAYOUT).scores for _ in range(2))
    assert all(a is b for a, b in zip(one, other, strict=True))
    assert not torch.equal(source.make(net, Load(skew=3.0), 3, LAYOUT).scores[0], one[0])
