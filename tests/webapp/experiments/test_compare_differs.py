"""What differs, and that a cause is named only where one thing does."""

from __future__ import annotations

from bench_worker.spec_fields import Layout, Routing
from tests.webapp.experiments import make
from tests.webapp.experiments.measured import measured, of
from webapp.experiments.compare_differs import differs


def test_one_variable_is_one_line() -> None:
    a, b = of(measured("a", id=1), measured("b", id=2, spec={"kernels.experts": "zentorch"}))
    found = differs([a, b], a)
    assert found.sentence == "kernels.experts: deepspeed → zentorch; same trace and batches, same machine."
    assert found.asked[0].by_contender == ["deepspeed", "zentorch"]


def test_values_of_one_variable_are_listed_once() -> None:
    found = of(
        *(measured(f"{k}-{n}", id=9 * k + n, spec={"routing.top_k": k or None}) for k in (0, 2, 4) for n in (1, 2))
    )
    assert differs(found, found[0]).asked[0].words == "routing.top_k: default → 2, 4"


def test_more_than_one_is_listed_and_no_cause_is_named() -> None:
    elsewhere = make.MACHINE | {"versions": {"torch": "2.14.0"}, "commit": "beef"}
    a = measured("a", id=1)
    b = measured("b", id=2, spec={"kernels.experts": "loop"}, environment=elsewhere, host="bench-2")
    found = differs(of(a, b), of(a)[0])
    assert found.sentence == "4 things differ; this page can't say which one did it."
    assert [one.words for one in found.all] == [
        "kernels.experts: deepspeed → loop", "Computer: bench-1 → bench-2", "torch: – → 2.14.0", "Commit: – → beef"
    ]  # fmt: skip


def test_a_group_that_only_means_something_together_is_one_variable() -> None:
    grouped = Routing(strategy="group_limited", num_groups=8, topk_groups=4)
    a, b, c = of(
        measured("a", id=1),
        measured("b", id=2, spec={"routing": grouped}),
        measured("c", id=3, spec={"routing.strategy": "hash"}),
    )
    assert differs([a, b, c], a).sentence.startswith(
        "routing: strategy=token_choice → strategy=group_limited num_groups=8 topk_groups=4, strategy=hash;"
    )
    wide = measured("d", id=4, spec={"parallel.layout": Layout(tp=2, dp=4)})
    assert [one.words for one in differs(of(measured(id=1), wide), a).asked] == [
        "parallel.layout: tp=1 dp=1 → tp=2 dp=4"
    ]


def test_the_workload_is_compared_where_they_share_no_corner() -> None:
    a, b = of(measured("a", id=1), measured("b", id=2, condition=1))
    names = [one.name for one in differs([a, b], a).asked]
    assert names == ["workload.concurrency", "workload.prompt_tokens"]
    both = of(measured("a", id=1), measured("a", id=3, condition=1), measured("b", id=2, condition=1))
    assert differs(both, both[0]).sentence.startswith("Nothing differs; same trace and batches, same machine: ")


def test_limits_of_latency_are_no_difference() -> None:
    limits = measured().spec.workload.limits.model_copy(update={"e2e_ms": 9.0})
    found = of(measured("a", id=1), measured("b", id=2, spec={"workload.limits": limits}))
    assert differs(found, found[0]).all == []


def test_many_values_are_counted() -> None:
    found = of(*(measured(f"{n}", id=n, spec={"routing.top_k": n}) for n in range(1, 12)))
    assert differs(found, found[0]).asked[0].words == "routing.top_k: 1 → 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
