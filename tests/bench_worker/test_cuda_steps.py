"""The parts of the CUDA-only measurements that need no CUDA."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.cuda_steps import DecodeGraphs, idle_share
from bench_worker.layer import MoELayer


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([], 0.0),
        ([(5, 5)], 0.0),
        ([(0, 10)], 0.0),
        ([(0, 4), (6, 10)], 0.2),
        ([(6, 10), (0, 4)], 0.2),
        ([(0, 8), (2, 3), (4, 10)], 0.0),  # two streams at once
        ([(0, 2), (1, 3), (8, 10)], 0.5),
    ],
)
def test_idle_is_the_span_without_the_union_of_kernels(spans, share):
    assert idle_share(spans) == pytest.approx(share)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=12))
def test_idle_equals_counting_the_moments_without_a_kernel(pairs):
    spans = [(start, start + length) for start, length in pairs]
    first, last = min(s for s, _ in spans), max(e for _, e in spans)
    idle = sum(not any(s <= moment < e for s, e in spans) for moment in range(first, last))
    assert idle_share(spans) == pytest.approx(idle / (last - first))


def variant(layer, graphable=True, **routing):
    backend = SimpleNamespace(graphable=graphable)
    layer.experts = SimpleNamespace(each=lambda: [backend])
    asked = SimpleNamespace(strategy="token_choice", capacity_factor=None)
    vars(asked).update(routing)
    return SimpleNamespace(spec=SimpleNamespace(routing=asked), layers=[layer])


def test_only_a_step_that_never_asks_the_device_can_be_captured():
    def moe():
        return object.__new__(MoELayer)

    assert DecodeGraphs.possible(variant(moe()))
    assert not DecodeGraphs.possible(variant(moe(), graphable=False))
    assert not DecodeGraphs.possible(variant(moe(), capacity_factor=1.0))
    assert not DecodeGraphs.possible(variant(moe(), strategy="dynamic"))
    assert not DecodeGraphs.possible(variant(SimpleNamespace()))
