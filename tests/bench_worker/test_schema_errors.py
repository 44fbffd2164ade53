"""Pydantic's errors in the project's words."""

from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bench_worker.errors import SpecError
from bench_worker.schema_errors import SpecProblem, spec_errors


class Leg(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    length: Annotated[float, Field(gt=0, lt=9.5)] = 1.0
    toes: Annotated[int, Field(ge=0, le=2000)] | None = None
    side: Literal["left", "right"] = "left"
    shoe: Annotated[str, Field(min_length=2, max_length=1500)] = "boot"
    bent: bool = False
    names: Annotated[list[str], Field(max_length=2)] = []

    @field_validator("names")
    @classmethod
    def _differ(cls, names):
        if len(set(names)) < len(names):
            raise SpecProblem(SpecError("legs.names", names, "differ"), SpecError("legs.side", None, "too"))
        return names


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: Literal[3] = Field(3, alias="v")
    legs: list[Leg] = []
    tail: Leg | None = None
    head: Leg


def errors(document):
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(document)
    return [str(error) for error in spec_errors(caught.value, Body)]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("length", 0, "0 is not allowed; it must be above 0"),
        ("length", 9.5, "9.5 is not allowed; it must be below 9.5"),
        ("length", float("nan"), "nan is not a finite number"),
        ("length", "1", "'1' is not a number"),
        ("length", True, "True is not a number"),
        ("length", None, "None is not a number"),
        ("toes", -1, "-1 is not allowed; it must be at least 0"),
        ("toes", 10**400, f"1{'0' * 58}… is not allowed; it must be at most 2,000"),
        ("toes", 1.5, "1.5 is not a whole number"),
        ("toes", True, "True is not a whole number"),
        ("side", "up", "'up' is not one of left, right"),
        ("side", 1, "1 is not one of left, right"),
        ("side", "lefd", "'lefd' is not one of left, right (did you mean left?)"),
        ("shoe", "x", "a length of 1 is not allowed; it must be at least 2"),
        ("shoe", "x" * 1501, "a length of 1,501 is not allowed; it must be at most 1,500"),
        ("shoe", 5, "5 is not text"),
        ("shoe", "\ud800\ud800", r"'\ud800\ud800' is not text"),
        ("bent", 1, "1 is not true or false"),
        ("names", ["a", "b", "c"], "a length of 3 is not allowed; it must be at most 2"),
        ("names", {"a": 1}, "{'a': 1} is not a list"),
    ],
)
def test_a_bad_value_gets_one_sentence_with_what_is_allowed(field, value, sentence):
    assert errors({"head": {field: value}}) == [f"head.{field}: {sentence}"]


def test_unknown_fields_are_told_what_there_is_at_every_depth():
    leg = "length, toes, side, shoe, bent, names"
    assert errors({"head": {"x": 1}, "legs": [{}, {"y": 1}], "tail": {"z": 1}, "w": 1}) == [
        f"legs.1.y: there is no such field; legs.1 has {leg}",
        f"tail.z: there is no such field; tail has {leg}",
        f"head.x: there is no such field; head has {leg}",
        "w: there is no such field; experiment has v, legs, tail, head",
    ]


def test_what_is_missing_or_not_an_object_is_said():
    assert errors({}) == ["head: is missing and has no default"]
    assert errors({"head": 5, "tail": "x", "legs": {}}) == [
        "legs: {} is not a list",
        "tail: 'x' is not an object",
        "head: 5 is not an object",
    ]
    assert errors([]) == ["experiment: [] is not an object"]


def test_a_set_of_one_value_is_named_as_that_value():
    assert errors({"v": 4, "head": {}}) == ["v: 4 is not allowed; it must be 3"]


def test_sentences_of_the_project_pass_through_as_they_are():
    assert errors({"head": {"names": ["a", "a"]}}) == ["legs.names: differ", "legs.side: too"]


@pytest.mark.parametrize("key", ["a\nb", "x" * 200_000, ""])
def test_a_key_of_any_kind_stays_on_one_short_line(key):
    (error,) = errors({"head": {key: 1}})
    assert "\n" not in error
    assert len(error) < 200


def test_a_key_that_is_no_text_is_refused():
    assert errors({"head": {3: 1}}) == ["head.3: 3 is not allowed: keys should be strings"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["v", "legs", "tail", "head", "toes", "shoe", "names", "?"]), inner)
        ),
    )
)
def test_whatever_the_document_each_problem_is_one_line(document):
    try:
        Body.model_validate(document)
    except ValidationError as error:
        for problem in spec_errors(error, Body):
            assert problem.field
            assert "\n" not in str(problem)
