"""The result file: what survives writing and reading, and what is not one."""

import json
import math

import pytest
from pydantic import ValidationError

from bench_worker.result import LAYER_STAGES, STAGES, Check, Result
from bench_worker.spec import Experiment
from tests.bench_worker.make import EXPERIMENT, made_result, made_run


def test_a_result_survives_its_file():
    result = made_result()
    assert Result.model_validate_json(result.model_dump_json(by_alias=True)) == result


def test_a_file_has_the_parts_of_schema_1():
    document = json.loads(made_result().model_dump_json(by_alias=True))
    assert set(document) == {
        "schema", "experiment", "environment", "ceilings", "runs", "comparisons", "verdict"
    }  # fmt: skip
    assert document["schema"] == 1
    run = document["runs"][0]
    assert {"variant", "condition", "spec", "fit", "steps", "requests", "summary"} <= set(run)
    assert set(run["steps"]) == {
        "index", "prefill_tokens", "decode_tokens", "step_us", "layer_us", "assignments", "dropped", "ranks",
        "start_us"
    }  # fmt: skip
    assert set(run["steps"]["ranks"][0]) == {
        "rank", "assignments", "rows", "stages_us", "idle_us", "bytes", "group_bytes"
    }  # fmt: skip


def test_the_experiment_in_a_result_can_be_run_again():
    document = json.loads(made_result().model_dump_json(by_alias=True))
    assert Experiment.model_validate(document["experiment"]) == EXPERIMENT


@pytest.mark.parametrize("error", [math.inf, math.nan, -math.inf, None])
def test_an_output_that_is_not_a_number_fails_its_check_and_the_file_stays_json(error):
    check = Check(rel_error=error, tolerance=0.01, tokens=8)
    assert not check.passed
    written = made_result(made_run(check=check, status="wrong result", steps=None, requests=None, summary=None))
    text = written.model_dump_json(by_alias=True)
    json.loads(text, parse_constant=pytest.fail)
    assert Result.model_validate_json(text) == written


@pytest.mark.parametrize(("error", "passed"), [(0.0, True), (0.01, True), (0.0101, False)])
def test_a_check_passes_up_to_its_tolerance(error, passed):
    assert Check(rel_error=error, tolerance=0.01, tokens=8).passed is passed


@pytest.mark.parametrize(
    "change",
    [{"schema": 2}, {"schema": None}, {"surprise": 1}, {"runs": None}, {"environment": []}, {"runs": [{}]}],
)
def test_another_schema_or_shape_is_no_result(change):
    document = json.loads(made_result().model_dump_json(by_alias=True)) | change
    with pytest.raises(ValidationError):
        Result.model_validate(document)


def test_the_layer_is_the_first_five_stages():
    assert LAYER_STAGES == ("route", "permute", "dispatch", "experts", "combine")
    assert STAGES[5:] == ("attention", "other", "idle")
    assert STAGES[:5] == LAYER_STAGES
