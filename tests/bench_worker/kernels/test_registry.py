"""Which backend may run what, and what ``auto`` chooses from."""

import json

import pytest
import torch

from bench_worker.kernels import registry, rules, zentorch
from bench_worker.kernels.auto import Auto
from bench_worker.result import Choice
from bench_worker.spec import Spec
from tests.bench_worker.conftest import TINY

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


@pytest.mark.parametrize("name", ["deepspeed", "padded", "deepspeed_layer"])
def test_a_backend_that_computes_in_the_weights_own_format_is_refused_quantized_ones(name):
    said = registry.refusal(spec(experts=name, quantization="int8"), CPU)
    assert said == f"kernels.quantization: 'int8' is not something '{name}' can compute; use loop, zentorch or auto"


def test_quantized_experts_are_computed_by_what_can(monkeypatch):
    monkeypatch.setattr(zentorch, "missing", lambda device: None)
    assert registry.candidates(spec(experts="auto", quantization="int8"), CPU)[0] == {
        "zentorch": "whole", "loop": "gate_up"
    }  # fmt: skip
    found, refused = registry.candidates(spec(experts="auto", quantization="int4"), CPU)
    assert found == {"loop": "gate_up"}
    assert refused["zentorch"] == (
        "kernels.quantization: 'int4' is not something 'zentorch' can compute; use loop or auto"
    )


@pytest.mark.parametrize(
    ("kernels", "said"),
    [
        ({"experts": "loop", "fusion": "none"},
         "kernels.fusion: 'none' is not something 'loop' can do with int8; use gate_up"),
        ({"experts": "loop", "dtype": "float32"},
         "kernels.quantization: 'int8' goes with bfloat16 rows; kernels.dtype is float32"),
        ({"experts": "zentorch", "dtype": "float32"},
         "kernels.quantization: 'int8' goes with bfloat16 rows; kernels.dtype is float32"),
        ({"experts": "loop", "quantization": "int4", "model": "gpt-oss-20b"},
         "kernels.quantization: 'int4' is read in pieces of 128 weights of a row; the hidden size of gpt-oss-20b is "
         "2,880, no multiple of it"),
    ],
)  # fmt: skip
def test_what_no_kernel_of_a_format_does_is_refused(kernels, said, monkeypatch):
    monkeypatch.setattr(zentorch, "missing", lambda device: None)
    assert registry.refusal(spec(**{"quantization": "int8"} | kernels), CPU) == said


def test_quantized_experts_are_computed_on_cpus():
    said = registry.refusal(spec(experts="loop", quantization="int8"), GPU)
    assert said == "kernels.quantization: 'int8' is computed on CPUs only; this device is cuda"


def test_auto_is_refused_without_a_machine_where_no_machine_has_anything():
    assert rules.refusal("auto", spec(quantization="int4")) is None
    said = rules.refusal("auto", spec(quantization="int4", model="gpt-oss-20b"))
    assert said == (
        "kernels.experts: 'auto' finds nothing that can run: 'int4' is not something 'deepspeed' can compute; "
        "'int4' is not something 'zentorch' can compute; 'int4' is not something 'padded' can compute; 'int4' is read "
        "in pieces of 128 weights of a row; the hidden size of gpt-oss-20b is 2,880, no multiple of it"
    )


@pytest.mark.parametrize("sizes", [{"hidden_size": 72}, {"moe_intermediate_size": 40}])
def test_sizes_that_torch_would_read_beyond_are_refused_in_int8(sizes, tmp_path):
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(TINY | sizes))
    said = registry.refusal(spec(experts="loop", quantization="int8", model=str(path)), CPU)
    (size,) = sizes.values()
    assert said.startswith("kernels.quantization: 'int8' is read in pieces of 16 weights of a row; the ")
    assert said.endswith(f"size of odd is {size}, no multiple of it")
