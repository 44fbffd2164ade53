"""The bounds of every field, and what an unknown one is told."""

import pytest

from bench_worker.spec import Experiment, SpecError

OLMOE = {"model": "olmoe-1b-7b"}


def errors(document):
    with pytest.raises(SpecError) as caught:
        Experiment.model_validate(document)
    return [str(error) for error in caught.value.errors]


@pytest.mark.parametrize(
    ("document", "field", "owner", "has"),
    [
        ({"x": 1}, "x", "experiment", "schema, title, base, vary, conditions, measure"),
        ({"schema_": 1}, "schema_", "experiment", "schema, title, base, vary, conditions, measure"),
        ({"base": {**OLMOE, "x": 1}}, "base.x", "base", "model, layers, routing, load, parallel, kernels, workload"),
        ({"base": {**OLMOE, "routing": {"topk": 1}}}, "base.routing.topk", "base.routing",
         "strategy, top_k, capacity_factor, scoring, renormalize, route_scale, "
         "bias, top_p, max_experts, solver, slots_per_expert, num_groups, topk_groups, group_score"),
        ({"base": {**OLMOE, "parallel": {"layout": {"pp": 1}}}}, "base.parallel.layout.pp", "base.parallel.layout",
         "tp, dp, nodes"),
        ({"vary": {"field": "layers", "values": [1], "x": 1}}, "vary.x", "vary", "field, values"),
        ({"conditions": [{}, {"seed": 1}]}, "conditions.1.seed", "conditions.1",
         "concurrency, prompt_tokens, output_tokens, requests, max_batch_tokens, rate, speedup"),
        ({"measure": {"seconds": 1}}, "measure.seconds", "measure", "warmup_steps, repeats, max_seconds"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_refused_at_every_depth(document, field, owner, has):
    assert errors({"base": OLMOE, **document}) == [f"{field}: there is no such field; {owner} has {has}"]


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("layers", 0, "0 is not allowed; it must be at least 1"),
        ("layers", True, "True is not a whole number"),
        ("layers", "1", "'1' is not a whole number"),
        ("layers", None, "None is not a whole number"),
        ("model", 5, "5 is not text"),
        ("model", "", "a length of 0 is not allowed; it must be at least 1"),
        ("model", "x" * 1025, "a length of 1,025 is not allowed; it must be at most 1,024"),
        ("routing", "token_choice", "'token_choice' is not an object"),
        ("routing.strategy", "tokenchoice", "'tokenchoice' is not one of token_choice, expert_choice, dynamic, "
         "balanced, hash, soft, group_limited (did you mean token_choice?)"),
        ("routing.top_k", 0, "0 is not allowed; it must be at least 1"),
        ("routing.capacity_factor", 0, "0 is not allowed; it must be above 0"),
        ("routing.capacity_factor", float("nan"), "nan is not a finite number"),
        ("routing.top_p", 0.0, "0.0 is not allowed; it must be above 0"),
        ("routing.top_p", 1.5, "1.5 is not allowed; it must be at most 1"),
        ("routing.max_experts", 0, "0 is not allowed; it must be at least 1"),
        ("routing.solver", "greedy", "'greedy' is not one of auction, exact"),
        ("routing.slots_per_expert", 0, "0 is not allowed; it must be at least 1"),
        ("routing.num_groups", 0, "0 is not allowed; it must be at least 1"),
        ("routing.group_score", "mean", "'mean' is not one of top2, max"),
        ("routing.bias", "0", "'0' is not a list"),
        ("load.correlation", 1.0, "1.0 is not allowed; it must be below 1"),
        ("load.correlation", -0.1, "-0.1 is not allowed; it must be at least 0"),
        ("load.profile", "normal", "'normal' is not one of uniform, zipf, recorded (did you mean uniform?)"),
        ("load.skew", -0.1, "-0.1 is not allowed; it must be at least 0"),
        ("load.skew", float("inf"), "inf is not a finite number"),
        ("parallel.layout.tp", 0, "0 is not allowed; it must be at least 1"),
        ("kernels.dtype", "bf16", "'bf16' is not one of float32, bfloat16, float16 (did you mean bfloat16?)"),
        ("kernels.attention", "yes", "'yes' is not true or false"),
        ("kernels.threads", 0, "0 is not allowed; it must be at least 1"),
        ("workload.concurrency", -1, "-1 is not allowed; it must be at least 1"),
        ("workload.concurrency", 4097, "4097 is not allowed; it must be at most 4,096"),
        ("workload.requests", 0, "0 is not allowed; it must be at least 1"),
        ("workload.requests", 10**30, f"1{'0' * 30} is not allowed; it must be at most 100,000"),
        ("workload.prompt_tokens", 0, "0 is not allowed; it must be at least 1"),
        ("workload.seed", -1, "-1 is not allowed; it must be at least 0"),
        ("workload.seed", 2**32, "4294967296 is not allowed; it must be below 4,294,967,296"),
        ("workload.rate", 0, "0 is not allowed; it must be above 0"),
        ("workload.rate", -2.5, "-2.5 is not allowed; it must be above 0"),
        ("workload.rate", float("inf"), "inf is not a finite number"),
        ("workload.speedup", 0, "0 is not allowed; it must be above 0"),
        ("workload.kv_tokens", 0, "0 is not allowed; it must be at least 1"),
        ("workload.prefix_reuse", 1, "1 is not true or false"),
        ("workload.arrivals", "open", "'open' is not one of closed, trace, poisson"),
        ("workload.limits.ttft_ms", 0, "0 is not allowed; it must be above 0"),
        ("workload.limits.tpot", 5, "there is no such field; base.workload.limits has ttft_ms, tpot_ms, e2e_ms"),
        ("workload.trace", "", "a length of 0 is not allowed; it must be at least 1"),
    ],
)  # fmt: skip
def test_a_bad_value_names_its_field_and_what_is_allowed(path, value, sentence):
    *parents, leaf = path.split(".")
    base = target = dict(OLMOE)
    for name in parents:
        target[name] = target = {}
    target[leaf] = value
    with pytest.raises(SpecError) as caught:
        Experiment.model_validate({"base": base})
    (error,) = caught.value.errors
    assert (error.field, error.message) == (f"base.{path}", sentence)
    assert error.value == value or value != value  # NaN equals nothing


def test_bounds_on_conditions_and_on_the_measurement_name_their_place():
    assert errors({"base": OLMOE, "conditions": [{}, {"concurrency": 0}], "measure": {"max_seconds": 0}}) == [
        "conditions.1.concurrency: 0 is not allowed; it must be at least 1",
        "measure.max_seconds: 0 is not allowed; it must be at least 1",
    ]
