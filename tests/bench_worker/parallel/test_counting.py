"""Counting alone gives what executing gives."""

import numpy as np
import pytest

from bench_worker.parallel.counting import CountingVariant
from tests.bench_worker.parallel.make import PLAIN, fitted, network, spec, step, virtual

STRATEGIES = ["token_choice", "dynamic", "hash", "group_limited", "expert_choice", "balanced", "soft"]


@pytest.mark.parametrize(("placement", "redundant"), [("contiguous", 0), ("eplb", 8)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_counts_the_rows_and_the_transfers_of_an_executed_step(tiny_config, strategy, placement, redundant):
    of = spec(
        tiny_config, tp=2, dp=2, routing={"strategy": strategy},
        parallel={"placement": placement, "redundant_experts": redundant},
    )  # fmt: skip
    executed = virtual(of)
    counted = of.model_copy(update={"parallel": of.parallel.model_copy(update={"count_only": True})})
    counting = CountingVariant(counted, network(counted), fitted(of), PLAIN)
    inputs = step(executed.network, {0: 5, 2: 1, 4: 7, 1: 2})
    a, b = executed.run(inputs), counting.run(inputs)
    assert np.array_equal(a.rows, b.rows)
    assert b.computed.tolist() == a.rows.sum(axis=(0, 1)).tolist()
    assert np.array_equal(a.outcome.rows, b.outcome.rows)
    assert np.array_equal(a.outcome.per_token, b.outcome.per_token)
    assert (a.outcome.dropped, a.outcome.common, a.outcome.either) == (
        b.outcome.dropped, b.outcome.common, b.outcome.either,
    )  # fmt: skip
    assert a.timeline.stages_us["dispatch"].tolist() == b.timeline.stages_us["dispatch"].tolist()
    assert set(b.timeline.stages_us) == {"dispatch", "combine.transfer"}


def test_it_holds_no_weights(tiny_config):
    of = spec(tiny_config, parallel={"count_only": True})
    made = network(of)
    assert not hasattr(made.layers[0].experts, "gate_up")
    assert made.layers[0].gate.numel() == 0
    assert CountingVariant(of, made, fitted(of), PLAIN).check().passed


def test_a_capacity_is_that_of_each_rank(tiny_config):
    of = spec(tiny_config, routing={"strategy": "token_choice", "capacity_factor": 0.5})
    counting = CountingVariant(of, network(of), fitted(of), PLAIN)
    executed = virtual(of)
    inputs = step(executed.network, {0: 9, 1: 4})
    assert counting.run(inputs).outcome.dropped == executed.run(inputs).outcome.dropped > 0
