"""What a table of backends can be asked for."""

import pytest

from bench_worker.errors import DoesNotFit, SpecError
from bench_worker.kernel_report import Asked, as_text, ask, need, spec_of, tokens_of
from tests.webapp.experiments import make


@pytest.mark.parametrize("text", ["0", "", "1,,2", "-1", "1.5", "131073", "eight", "٣"])
def test_tokens_must_be_whole_numbers_that_a_step_can_hold(text):
    with pytest.raises(SpecError, match="is not a whole number from 1 to 131,072"):
        tokens_of(text)


def test_tokens_are_read_in_order():
    assert tokens_of("512, 1,8") == [512, 1, 8]


@pytest.mark.parametrize(("model", "dtype", "field"), [("gpt-9", "bfloat16", "base.model"),
                                                        ("olmoe-1b-7b", "fp8", "base.kernels.dtype")])  # fmt: skip
def test_what_there_is_not_is_named(model, dtype, field):
    with pytest.raises(SpecError) as caught:
        spec_of(model, [1], dtype)
    assert caught.value.field == field


def test_the_same_tokens_twice_are_refused():
    with pytest.raises(SpecError, match="8 stands there more than once"):
        tokens_of("8,1,8")


def test_more_sizes_than_anyone_reads_are_refused():
    with pytest.raises(SpecError, match="17 numbers are given; at most 16 are allowed"):
        tokens_of(",".join(map(str, range(1, 18))))


def test_what_is_asked_for_has_a_title_and_survives_json():
    asked = ask("olmoe-1b-7b", "8, 1", "float32")
    assert asked == Asked(
        title="Kernels: olmoe-1b-7b, float32", model="olmoe-1b-7b", tokens=[8, 1], dtype="float32", load="uniform"
    )
    assert Asked.model_validate_json(asked.model_dump_json()) == asked
    assert asked.spec.workload.max_batch_tokens == 8


def test_the_format_of_the_experts_is_part_of_what_is_asked_for():
    asked = ask("olmoe-1b-7b", "1", quantization="int8")
    assert asked.title == "Kernels: olmoe-1b-7b, bfloat16, experts in int8"
    assert asked.spec.kernels.quantization == "int8"
    before = asked.model_dump(exclude={"quantization"})  # as tables of before formats of experts were asked for
    assert Asked.model_validate(before).quantization == "none"
    with pytest.raises(SpecError) as caught:
        ask("olmoe-1b-7b", "1", "float32", quantization="int8")
    assert caught.value.field == "base.kernels.quantization"
    assert "'int8' goes with bfloat16 rows; kernels.dtype is float32" in caught.value.message


def test_the_path_of_a_config_is_for_the_command_line(tiny_config):
    assert spec_of(str(tiny_config), [1]).model == str(tiny_config)
    with pytest.raises(SpecError) as caught:
        ask(str(tiny_config), "1")
    assert caught.value.field == "base.model"


def test_what_does_not_fit_is_refused_with_both_figures():
    spec = spec_of("olmoe-1b-7b", [1])
    assert need(spec, [1], 8 * 10**9).fits
    with pytest.raises(DoesNotFit, match=r"measuring olmoe-1b-7b at 1 tokens needs .* GB and the device has 0\.5 GB"):
        need(spec, [1], 5 * 10**8)


def test_the_memory_bus_around_the_calls_stands_beside_the_share_of_the_floor():
    table = make.table(tokens=[1])
    auto = table.rows[0].model_copy(update={"bus": 49.25})
    of_before = table.rows[1].model_copy(update={"bus": None})
    head, line, other = as_text(table.model_copy(update={"rows": [auto, of_before]})).splitlines()[-3:]
    assert "of floor  bus GB/s  bound by" in head
    assert line.split()[-6:-3] == ["89%", "49.2", "memory"]
    assert other.split()[-5:-3] == ["67%", "memory"]
