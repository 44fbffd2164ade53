"""The capacity page: two answers that are kept apart, refusals beside their fields, and the way to the form."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest

from bench_worker import models
from bench_worker.planning import memory_needed
from bench_worker.spec import Spec, SpecError
from tests.webapp.experiments import make, rows
from webapp.experiments import machines, memory
from webapp.experiments.sizing import SizingForm, query_of

pytestmark = pytest.mark.django_db
CAPACITY = "/capacity/"


def page(client: Any, query: str = "", **headers: str) -> str:
    response = client.get(CAPACITY + query, headers=headers)
    assert response.status_code == 200
    return rows.text_of(response)


def test_it_answers_without_a_run_or_a_machine(signed_in: Any) -> None:
    said = page(signed_in)
    # 61.1 GB of weights; KV cache: 16 requests · 2,560 tokens · 48 layers · 2 · 4 heads · 128 · 2 bytes = 4.03 GB
    assert "4.03 GB" in said
    assert "It fits: 65." in said
    assert "no worker has registered yet" in said


def test_what_is_too_large_says_how_many_are_needed(signed_in: Any) -> None:
    said = page(signed_in, "?device=L40S")
    assert "It does not fit: 65." in said
    assert "It needs at least 2 of these (TP 2 × DP 1" in said


def test_what_no_number_of_devices_holds_is_said(signed_in: Any) -> None:
    query = "?model=deepseek-v3&device=L40S&concurrency=4096&prompt_tokens=1000000&max_batch_tokens=4096"
    assert "No number of these up to 1,024 is enough." in page(signed_in, query)


def test_deployment_and_measurement_are_answered_apart(signed_in: Any) -> None:
    machine = machines.register_this(rows.MACHINE, "default")  # 24 GB
    said = page(signed_in, f"?device=machine-{machine.pk}")
    assert "It does not fit: 65." in said
    assert "It fits: 4." in said  # one layer of 48, with embedding and head
    assert "of 24.0 GB on AMD EPYC, 2 cores" in said


def test_a_machine_with_a_gpu_keeps_no_kernels_of_its_cpu(signed_in: Any) -> None:
    machines.register_this(rows.MACHINE, "default")
    kept = SizingForm({}).answer()
    gpu = {"name": "H100", "memory_bytes": 80e9}
    machines.register_this(rows.MACHINE | {"fingerprint": "beef", "gpus": [gpu]}, "default")
    none = SizingForm({}).answer()
    assert kept
    assert none
    assert kept.measurement.fit.parts["kernels"] > 0 == none.measurement.fit.parts["kernels"]
    asked = make.experiment()
    there, here = (memory_needed(memory.conditions_of(asked), None, on_gpu=on_gpu).fit for on_gpu in (True, False))
    assert memory.outlook(asked).measurement_bytes == there.total_bytes < here.total_bytes
    memory.check(asked)


def test_what_cannot_be_measured_yet_is_named(signed_in: Any) -> None:
    said = page(signed_in, "?quantization=fp8&redundant_experts=2")
    assert "This version can't measure it as it stands:" in said
    assert "kernels.quantization: 'fp8' is not built yet" in said
    assert "parallel.redundant_experts: 2 needs several ranks" in said


@pytest.mark.parametrize(("layout", "experts"), [("", "auto"), ("&tp=2&dp=2", "loop")])
def test_quantized_experts_are_measured_by_what_computes_them(signed_in: Any, layout: str, experts: str) -> None:
    answers = {
        name: signed_in.get(f"{CAPACITY}?quantization={name}{layout}").context["answer"]
        for name in ("none", "int8", "int4")
    }
    sizes = [answer.measurement.fit.parts["experts"] for answer in answers.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert all(answer.measurement.refused == [] for answer in answers.values())
    asked = signed_in.get(f"/experiments/new/?{answers['int8'].new_query}").context["form"].asked().base.kernels
    assert (asked.quantization, asked.experts) == ("int8", experts)


GPU = rows.MACHINE | {"gpus": [{"name": "NVIDIA H200", "memory_bytes": 141e9}]}


def test_a_pool_of_gpus_is_told_what_only_cpus_compute(signed_in: Any) -> None:
    machines.register_this(GPU, "default")
    sentence = "'int8' is computed on CPUs only; this device is cuda"
    assert sentence in page(signed_in, "?quantization=int8")
    kernels = {"model": "olmoe-1b-7b", "kernels": {"experts": "auto", "quantization": "int8"}}
    with pytest.raises(SpecError) as caught:
        memory.check(make.experiment(base=kernels, vary=None))
    assert (caught.value.field, caught.value.message) == ("base.kernels.quantization", sentence)
    varied = {"field": "kernels.quantization", "values": ["none", "int8"]}
    with pytest.raises(SpecError) as caught:
        memory.check(make.experiment(base={"model": "olmoe-1b-7b", "kernels": {"experts": "auto"}}, vary=varied))
    assert (caught.value.field, caught.value.value) == ("vary.values", "int8")
    machines.register_this(rows.MACHINE | {"fingerprint": "c0de"}, "default")  # a CPU beside it
    memory.check(make.experiment(base=kernels, vary=None))


def test_a_table_of_kernels_is_refused_where_every_machine_has_gpus(signed_in: Any) -> None:
    machine = machines.register_this(GPU, "default")
    asked = {"model": "olmoe-1b-7b", "tokens": "1", "dtype": "bfloat16", "load": "uniform", "quantization": "int8"}
    response = signed_in.post(machine.get_absolute_url(), asked)
    assert response.status_code == 422
    assert response.context["form"].errors["quantization"] == ["'int8' is computed on CPUs only; this device is cuda"]


def test_a_format_that_no_kernel_has_for_a_model_is_named(signed_in: Any) -> None:
    said = page(signed_in, "?quantization=int4&model=gpt-oss-20b")
    assert "the hidden size of gpt-oss-20b is 2,880, no multiple of it" in said


def test_several_ranks_are_measured_as_virtual_ones(signed_in: Any) -> None:
    query = "?tp=2&dp=2&redundant_experts=4"
    said = page(signed_in, query)
    assert "The measurement one MoE layer of 4 virtual ranks on one device, with attention" in said
    assert "can't measure it as it stands" not in said
    answer = signed_in.get(CAPACITY + query).context["answer"]
    form = signed_in.get(f"/experiments/new/?{answer.new_query}").context["form"]
    asked = form.asked().base
    assert (asked.parallel.mode, asked.parallel.layout.tp, asked.parallel.layout.dp) == ("virtual", 2, 2)
    assert (asked.parallel.redundant_experts, asked.kernels.attention) == (4, True)
    assert "do not divide by 4 ranks" in page(signed_in, query.replace("experts=4", "experts=3"))


def test_the_attention_of_several_ranks_takes_memory(signed_in: Any) -> None:
    machines.register_this(rows.MACHINE, "default")
    fit = signed_in.get(CAPACITY + "?tp=2").context["answer"].measurement.fit
    # qwen3-30b-a3b's key-value heads, 4 of 128, on two ranks of 2 each: 2 · 2 · 2 · 128 · 2 bytes a token
    assert fit.kv_bytes_per_token == 2048
    # embedding and head, 151,936 · 2048 each, lie here once
    assert fit.parts["embedding"] == fit.parts["lm_head"] == 151_936 * 2048 * 2


UNDIVIDED = [
    ("model=olmoe-1b-7b&tp=2&dp=2", "olmoe-1b-7b norms queries over all heads together, which is not divided here"),
    ("model=glm-4.5-air&tp=3", "3 does not divide the 8 key-value heads of glm-4.5-air"),
    ("model=qwen3.6-35b-a3b&tp=2", "qwen3.6-35b-a3b has 30 linear-attention layers of 40: its gated delta-net layers"),
    ("model=qwen3.6-35b-a3b", "qwen3.6-35b-a3b has 30 linear-attention layers of 40: its gated delta-net layers"),
]


@pytest.mark.parametrize(("query", "reason"), UNDIVIDED)
def test_attention_that_no_group_can_divide_is_left_out_with_the_reason(
    signed_in: Any, query: str, reason: str
) -> None:
    said = page(signed_in, f"?{query}&max_batch_tokens=64")
    assert "on one rank, without attention" in said or "on one device, without attention" in said
    assert f"Without attention, since {reason}" in said


@pytest.mark.parametrize("model", models.presets())
@pytest.mark.parametrize("layout", ["tp=1&dp=1", "tp=1&dp=4", "tp=2&dp=2", "tp=8&dp=1"])
def test_what_can_be_measured_leads_to_a_form_that_takes_it(signed_in: Any, model: str, layout: str) -> None:
    answer = signed_in.get(f"{CAPACITY}?model={model}&{layout}").context["answer"]
    assert answer.measurement.refused == []
    form = signed_in.get(f"/experiments/new/?{answer.new_query}").context["form"]
    asked = form.asked().base
    assert (asked.model, asked.parallel.layout.num_ranks) == (model, answer.ranks)
    assert asked.kernels.attention is (answer.measurement.without_attention is None)


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ("?model=gpt-5", "model", "'gpt-5' is not"),
        ("?model=../config.json", "model", "is a file path"),
        ("?concurrency=0", "concurrency", "0 is not allowed"),
        ("?concurrency=4096&max_batch_tokens=2048", "concurrency", "above max_batch_tokens"),
        ("?prompt_tokens=1.5", "prompt_tokens", "1.5 is not"),
        ("?output_tokens=1,2", "output_tokens", "'1,2' is not"),
        ("?tp=3", "tp", "3 does not divide the 32 attention heads of qwen3-30b-a3b"),
        ("?redundant_experts=-1", "redundant_experts", "-1 is not allowed"),
        ("?dtype=int4", "dtype", "'int4' is not"),
        ("?device=TPU", "device", "'TPU' is not"),
    ],
)
def test_a_refusal_stands_beside_its_field(signed_in: Any, query: str, field: str, message: str) -> None:
    response = signed_in.get(CAPACITY + query)
    assert message in " ".join(response.context["form"].errors[field])
    assert "No answer: see what is marked above." in rows.text_of(response)


def test_redundant_experts_squeeze_the_kv_cache(signed_in: Any) -> None:
    # olmoe on one L40S: a request of 2,560 tokens takes 16 layers · 2 · 16 heads · 128 · 2 bytes each, 336 MB; 16 more
    # copies of an expert in each of 16 layers 16 · 16 · 3 · 2048 · 1024 · 2 bytes, 3.22 GB: as much as 9 to 10 requests
    query = "?model=olmoe-1b-7b&device=L40S&redundant_experts="
    answers = [signed_in.get(f"{CAPACITY}{query}{copies}").context["answer"] for copies in (0, 16)]
    assert answers[0].squeezed == 0
    assert answers[1].squeezed in (9, 10)
    most = [answer.deployment.max_concurrency for answer in answers]
    assert most[0] - most[1] == answers[1].squeezed
    assert f"{answers[1].squeezed} fewer than without redundant experts" in page(signed_in, f"{query}16")
    assert "fewer than" not in page(signed_in, f"{query}0")


def test_lengths_beyond_the_context_are_warned_of(signed_in: Any) -> None:
    assert "qwen3-30b-a3b was made for 40,960" in page(signed_in, "?prompt_tokens=50000")


def test_an_emptied_field_takes_its_usual_value() -> None:
    assert SizingForm({"concurrency": ""}).answer() == SizingForm({}).answer()


def test_a_part_of_the_page_carries_the_refusals_and_no_field(signed_in: Any) -> None:
    part = signed_in.get(f"{CAPACITY}?tp=3", headers={"HX-Request": "true"}).content.decode()
    assert "<input" not in part
    assert '<div id="id_tp_said" hx-swap-oob="true"><ul class="errorlist"' in part


def test_it_leads_to_the_form_with_the_same_values(signed_in: Any) -> None:
    answer = SizingForm({"model": "olmoe-1b-7b", "concurrency": "3", "prompt_tokens": "77"}).answer()
    assert answer
    form = signed_in.get(f"/experiments/new/?{answer.new_query}").context["form"]
    values = [form[name].value() for name in ("model", "concurrency", "prompt_tokens", "output_tokens", "layers")]
    assert values == ["olmoe-1b-7b", "3", "77", "512", "1"]


def test_the_form_shows_the_bar_and_leads_back(signed_in: Any) -> None:
    machines.register_this(rows.MACHINE, "default")
    response = signed_in.get("/experiments/new/?model=olmoe-1b-7b&concurrency=3&prompt_tokens=77&output_tokens=5")
    assert 'class="memory-bar"' in response.content.decode()
    asked = parse_qs(response.context["capacity_query"])
    assert (asked["model"], asked["concurrency"], asked["prompt_tokens"]) == (["olmoe-1b-7b"], ["3"], ["77"])


def test_the_form_says_how_many_devices_the_deployment_needs(signed_in: Any) -> None:
    machines.register_this(rows.MACHINE, "default")  # 24 GB: two can't hold 61 GB
    said = rows.text_of(signed_in.get("/experiments/new/?model=qwen3-30b-a3b&concurrency=1"))
    assert "It needs at least 3 devices like this worker's" in said
    assert "devices like" not in rows.text_of(signed_in.get("/experiments/new/?model=olmoe-1b-7b&concurrency=1"))


def test_lengths_that_the_trace_decides_are_asked_for_as_one() -> None:
    query = parse_qs(query_of(Spec(model="olmoe-1b-7b"), 900))
    assert (query["prompt_tokens"], query["output_tokens"]) == (["899"], ["1"])
