"""Step columns to rows and back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bench_worker.result import RankSteps, Steps
from webapp.experiments.ingest import Column, flatten, unflatten

times = st.floats(min_value=0, max_value=1e12, allow_nan=False)
counts = st.integers(min_value=0, max_value=2**53)
stages = st.sampled_from(["route", "route.gate", "experts", "attention.full", "other", "idle"])
domains = st.sampled_from(["local", "intra_node", "inter_node"])


@st.composite
def all_steps(draw: Any) -> Steps:
    """Steps of any length (none too), of up to three ranks with different stages."""
    length = draw(st.integers(0, 5))
    whole, real = st.lists(counts, min_size=length, max_size=length), st.lists(times, min_size=length, max_size=length)
    ranks = [
        RankSteps(
            rank=rank,
            assignments=draw(whole),
            rows=draw(whole),
            stages_us=draw(st.dictionaries(stages, real)),
            idle_us=draw(real),
            bytes=draw(st.dictionaries(domains, whole)),
            group_bytes=draw(st.dictionaries(domains, whole)),
        )
        for rank in range(draw(st.integers(0, 3)))
    ]
    return Steps(
        index=draw(whole), prefill_tokens=draw(whole), decode_tokens=draw(whole), step_us=draw(real),
        layer_us=draw(real), assignments=draw(whole), dropped=draw(whole), ranks=ranks,
        start_us=draw(st.none() | real),
    )  # fmt: skip


@given(all_steps())
def test_columns_give_back_the_steps_they_came_from(steps: Steps) -> None:
    as_stored = [Column(c.rank, c.stage, [float(value) for value in c.values]) for c in flatten(steps)]
    assert unflatten(as_stored) == steps


@given(all_steps())
def test_no_two_columns_have_the_same_place(steps: Steps) -> None:
    places = [(column.rank, column.stage) for column in flatten(steps)]
    assert len(places) == len(set(places))


def test_columns_have_the_names_that_queries_use() -> None:
    rank = RankSteps(rank=0, assignments=[8], rows=[8], stages_us={"experts": [1.5]}, idle_us=[0], bytes={"local": [9]})
    steps = Steps(index=[0], prefill_tokens=[16], decode_tokens=[0], step_us=[2.0], layer_us=[1.5], assignments=[8],
                  dropped=[0], ranks=[rank])  # fmt: skip
    assert [(column.rank, column.stage) for column in flatten(steps)] == [
        (None, "index"), (None, "prefill_tokens"), (None, "decode_tokens"), (None, "step_us"), (None, "layer_us"),
        (None, "assignments"), (None, "dropped"), (0, "assignments"), (0, "rows"), (0, "idle_us"), (0, "experts"),
        (0, "bytes.local"),
    ]  # fmt: skip
