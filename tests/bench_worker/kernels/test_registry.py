"""Which backend may run what, and what ``auto`` chooses from."""

import pytest
import torch

from bench_worker.kernels import registry, rules, zentorch
from bench_worker.kernels.auto import Auto
from bench_worker.result import Choice
from bench_worker.spec import Spec

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def spec(**kernels):
    return Spec.model_validate({"model": kernels.pop("model", "qwen3-30b-a3b"), "kernels": kernels})


@pytest.fixture
def without_zentorch(monkeypatch):
    monkeypatch.setattr(zentorch, "missing", lambda device: "it is away")


@pytest.fixture
def old_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")


@pytest.mark.parametrize("name", registry.NAMES)
def test_every_value_of_the_field_names_something(name):
    assert registry.refusal(spec(experts=name, fusion="gate_up"), CPU) is None or name == "zentorch"


def test_a_format_that_the_device_lacks_is_refused_for_every_backend(old_gpu):
    for name in ("auto", *registry.NAMES):
        said = registry.refusal(spec(experts=name), GPU)
        assert said == "kernels.dtype: 'bfloat16' needs a GPU of compute capability 8.0 or above; Tesla T4 is older"


@pytest.mark.parametrize("name", ["deepspeed", "loop", "padded"])
def test_what_a_backend_can_not_fuse_is_refused(name):
    said = registry.refusal(spec(experts=name, fusion="whole"), CPU)
    assert said == f"kernels.fusion: 'whole' is not something '{name}' can do; use none or gate_up"


def test_a_machine_reports_what_can_not_run_on_it(without_zentorch):
    found = registry.report(CPU)
    assert list(found) == ["auto", *registry.NAMES]
    assert found["zentorch"] == dict.fromkeys(rules.FUSIONS, "kernels.experts: 'zentorch' can't run: it is away")
    assert found["deepspeed_layer"]["gate_up"] is None
    for name in ("deepspeed", "padded", "loop", "deepspeed_layer"):
        assert found[name]["none"] is None
        assert "'whole'" in found[name]["whole"]


def test_an_older_gpu_is_asked_in_a_format_that_it_has(old_gpu):
    found = registry.report(GPU)
    assert found["loop"]["none"] is None
    assert found["deepspeed"]["none"].endswith("Tesla T4 is older")


def test_auto_takes_every_backend_at_the_most_that_it_can_fuse(monkeypatch):
    monkeypatch.setattr(zentorch, "missing", lambda device: None)
    found, refused = registry.candidates(spec(experts="auto", fusion="none"), CPU)
    assert found == {"deepspeed": "gate_up", "zentorch": "whole", "padded": "gate_up", "loop": "gate_up"}
    assert refused == {}


def test_auto_leaves_out_what_fuses_less_than_asked_for(monkeypatch):
    monkeypatch.setattr(zentorch, "missing", lambda device: None)
    found, refused = registry.candidates(spec(experts="auto", fusion="whole"), CPU)
    assert found == {"zentorch": "whole"}
    assert set(refused) == {"deepspeed", "padded", "loop"}


def test_auto_is_refused_only_where_nothing_is_left(without_zentorch):
    assert registry.refusal(spec(experts="auto", fusion="gate_up"), CPU) is None
    said = registry.refusal(spec(experts="auto", fusion="whole"), CPU)
    assert said.startswith("kernels.experts: 'auto' finds nothing that can run: ")
    assert "zentorch' can't run: it is away" in said


def test_auto_runs_a_step_on_what_was_fastest_at_the_nearest_size():
    small, large = object(), object()
    choices: list[Choice] = []
    auto = Auto({"small": small, "large": large}, choices)
    assert auto.at(4000) is small  # nothing was measured yet: the first
    for tokens, backend in ((1, "small"), (64, "small"), (2048, "large")):
        choices.append(Choice(tokens=tokens, backend=backend, fusion="none", layer_us={}))
    assert [auto.chosen(tokens) for tokens in (1, 64, 300, 400, 2048, 9000)] == ["small"] * 3 + ["large"] * 3
    assert auto.each() == [small, large]
