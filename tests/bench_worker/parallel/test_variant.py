"""Ranks executed in turn: the same outputs as one rank, or as each rank's own reference."""

import math

import pytest
import torch

from bench_worker import reference
from bench_worker.errors import SpecError
from bench_worker.kernels import permute
from bench_worker.routing.reference import expected
from bench_worker.stages import NoClock
from bench_worker.variant import Variant
from tests.bench_worker.parallel.make import network, outputs, spec, step, virtual

#: Tokens by request: uneven; with two groups, request 1 alone in the second; with four, two ranks get none.
UNEVEN = {0: 5, 2: 1, 4: 7, 1: 2, 6: 3}
TOKEN_BY_TOKEN = ["token_choice", "dynamic", "hash", "group_limited"]
ACROSS_TOKENS = ["expert_choice", "balanced", "soft"]
PLACED = [("contiguous", 0), ("round_robin", 0), ("eplb", 0), ("locality", 0), ("eplb", 8), ("contiguous", 4)]


def made(config, ranks, strategy, placement="contiguous", redundant=0, **more):
    tp = 2 if ranks == 4 else 1
    of = spec(
        config, tp=tp, dp=ranks // tp, routing={"strategy": strategy},
        parallel={"placement": placement, "redundant_experts": redundant}, **more,
    )  # fmt: skip
    return virtual(of)


@pytest.mark.parametrize(("placement", "redundant"), PLACED)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("strategy", TOKEN_BY_TOKEN)
def test_several_ranks_compute_what_one_does(tiny_config, strategy, ranks, placement, redundant):
    variant = made(tiny_config, ranks, strategy, placement, redundant)
    inputs = step(variant.network, UNEVEN)
    one = Variant(variant.spec, network(variant.spec))
    for layer in range(2):
        correct, _ = one.layers[layer].forward(inputs.hidden, inputs.scores[layer], NoClock(), inputs.token_ids)
        found = torch.empty_like(correct)
        requests = [s.request for s in inputs.layout.segments for _ in range(s.length)]
        rows = variant.layout.rows_of_ranks(torch.tensor(requests).numpy(), torch.ones(len(requests)).long().numpy())
        for own, output in zip(rows, outputs(variant, inputs, layer), strict=True):
            found[own] = output
        assert (found - correct).abs().max() < 1e-5


@pytest.mark.parametrize(("placement", "redundant"), PLACED)
@pytest.mark.parametrize("strategy", ACROSS_TOKENS)
def test_what_looks_across_tokens_sees_those_of_its_rank(tiny_config, strategy, placement, redundant):
    variant = made(tiny_config, 4, strategy, placement, redundant)
    inputs = step(variant.network, UNEVEN)
    given = variant.split(inputs)
    done = variant.forward(0, given, [NoClock() for _ in given])
    for own, output, routed in zip(given, done.outputs, done.routed, strict=True):
        assert output.shape == own.hidden.shape
        if not len(own.hidden):
            continue
        choices = expected(variant.router, own.scores[0], own.token_ids, routed)
        correct = reference.layer(own.hidden, variant.network.layers[0], choices, "swiglu")
        assert reference.relative_error(output, correct) < 1e-5


@pytest.mark.parametrize("experts", ["deepspeed", "loop", "padded"])
@pytest.mark.parametrize("strategy", [*TOKEN_BY_TOKEN, *ACROSS_TOKENS])
def test_the_check_passes_with_every_backend_and_strategy(tiny_config, strategy, experts):
    variant = made(tiny_config, 4, strategy, "eplb", 8, kernels={"experts": experts})
    assert variant.check().passed


def test_the_check_finds_a_wrong_sum(tiny_config, monkeypatch):
    combine = permute.Packed.combine
    monkeypatch.setattr(permute.Packed, "combine", lambda packed, rows: combine(packed, rows) * 1.5)
    check = made(tiny_config, 2, "token_choice").check()
    assert check.rel_error == pytest.approx(0.5, abs=1e-4)
    assert not check.passed


def test_the_check_finds_a_row_that_nobody_wrote(tiny_config, monkeypatch):
    variant = made(tiny_config, 2, "token_choice")
    monkeypatch.setattr(variant.exchange, "combine", lambda results: [r.new_full((256, 64), math.nan) for r in results])
    assert not variant.check().passed


def test_rows_and_bytes_are_counted_from_rank_to_rank(tiny_config):
    variant = made(tiny_config, 2, "token_choice")
    inputs = step(variant.network, UNEVEN)
    done = variant.run(inputs)
    tokens = [16, 2]  # requests 0, 2, 4 and 6; request 1
    assert done.rows.sum(axis=2).tolist() == [[2 * count for count in tokens]] * 2  # top-2 in each of two layers
    assert done.rows.sum() == done.outcome.assignments == 2 * 2 * 18
    held = [done.outcome.rows[:, :4].sum(), done.outcome.rows[:, 4:].sum()]  # contiguous: four experts a rank
    assert done.rows.sum(axis=(0, 1)).tolist() == held
    assert done.computed.tolist() == held
    # each byte takes a microsecond: a rank's dispatch takes what it sends or gets, whichever is more
    sent = done.rows * 64 * 4
    assert done.timeline.stages_us["dispatch"].tolist() == [float(layer_sum) for layer_sum in [
        sum(max(layer[0, 1], layer[1, 0]) for layer in sent)] * 2
    ]  # fmt: skip


def test_every_rank_knows_the_work_of_its_experts(tiny_config):
    """Multiply-adds count two, and each row meets three matrices of 64 × 32."""
    variant = made(tiny_config, 2, "token_choice")
    done = variant.run(step(variant.network, UNEVEN))
    assert [own["experts"].flops for own in done.work] == [6 * 64 * 32 * int(rows) for rows in done.computed]
    assert all(list(own) == ["experts"] for own in done.work)


def test_a_step_of_fewer_tokens_than_ranks_leaves_ranks_without_any(tiny_config):
    variant = made(tiny_config, 4, "expert_choice")
    done = variant.run(step(variant.network, {3: 1}))
    assert done.rows.sum(axis=(0, 2)).tolist() == [0, 0, 2 * 8, 0]  # one token in group 1: all 8 experts take it
    assert (done.timeline.idle_us >= 0).all()


def test_padded_rows_are_counted_on_each_rank(tiny_config):
    variant = made(tiny_config, 2, "token_choice", kernels={"experts": "padded"})
    done = variant.run(step(variant.network, UNEVEN))
    rows = done.outcome.rows
    assert done.computed.tolist() == [4 * rows[:, part].max(axis=1).sum() for part in (slice(0, 4), slice(4, 8))]


def test_several_ranks_are_refused_where_there_is_one(tiny_config):
    with pytest.raises(SpecError, match="needs several ranks"):
        spec(tiny_config, parallel={"mode": "single"})


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize(("placement", "redundant"), PLACED)
def test_the_check_passes_with_quantized_experts_wherever_they_are_placed(
    wide_config, quantization, placement, redundant
):
    kernels = {"experts": "loop", "dtype": "bfloat16", "quantization": quantization}
    check = made(wide_config, 4, "token_choice", placement, redundant, kernels=kernels).check()
    assert check.passed
    assert 0 < check.quantization_error < 0.5


def test_quantized_experts_of_a_rank_have_fewer_bytes_to_read(wide_config):
    def work(quantization):
        variant = made(wide_config, 2, "token_choice", kernels={
            "experts": "loop", "dtype": "bfloat16", "quantization": quantization
        })  # fmt: skip
        return variant.run(step(variant.network, UNEVEN)).work[0]["experts"]

    plain, int8 = work("none"), work("int8")
    assert plain.flops == int8.flops == int8.int8_flops
    assert plain.int8_flops == 0
    active = plain.weight_bytes / (2 * 3 * 256 * 128)
    assert int8.weight_bytes == active * (3 * 256 * 128 + 2 * (2 * 128 + 256))
