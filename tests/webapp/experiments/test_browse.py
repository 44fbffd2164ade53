"""Finding runs to compare: filters in the address, and ticks that stay."""

from __future__ import annotations

from typing import Any

import pytest

from tests.webapp.experiments.rows import done, put, text_of
from webapp.experiments import upkeep
from webapp.experiments.models import Machine

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]
BROWSE = "/compare/"


def found(client: Any, **filters: str) -> list[tuple[str, str, str]]:
    rows = client.get(BROWSE, filters).context["rows"]
    return [(row["experiment__title"], row["variant"], row["condition"]) for row in rows]


def test_without_a_run_it_says_what_will_be_here(signed_in: Any, member: Any) -> None:
    put(member)
    response = signed_in.get(BROWSE)
    assert response.status_code == 200
    assert "Every measured run of the team will be listed here" in text_of(response)
    assert "Queue the first experiment" in text_of(response)


def test_runs_are_listed_latest_experiment_first(signed_in: Any, member: Any) -> None:
    done(member, title="old", vary=None)
    done(member, title="new", wrong=frozenset(["none"]))
    gone = done(member, title="gone")
    upkeep.delete(gone.pk)
    assert found(signed_in) == [
        ("new", "gate_up", "1×16"), ("new", "gate_up", "4×64"), ("old", "base", "1×16"), ("old", "base", "4×64")
    ]  # fmt: skip


def test_runs_are_found_by_model_strategy_tag_machine_and_author(
    signed_in: Any, member: Any, django_user_model: Any
) -> None:
    one = [{"concurrency": 1, "prompt_tokens": 16}]
    base = {"workload": {"requests": 4, "output_tokens": 4}}
    mine = done(member, title="mine", conditions=one, vary={"field": "routing.strategy", "values": ["hash", "soft"]})
    upkeep.describe(mine.pk, title="mine", tags=["nightly"], notes="")
    done(django_user_model.objects.create_user("bert"), title="theirs", conditions=one, vary=None,
         base=base | {"model": "mixtral-8x7b"})  # fmt: skip
    Machine.objects.filter(experiment__title="theirs").update(name="H100")
    hash_, soft, theirs = ("mine", "hash", "1×16"), ("mine", "soft", "1×16"), ("theirs", "base", "1×16")
    assert found(signed_in) == [theirs, hash_, soft]
    assert found(signed_in, model="mixtral-8x7b") == [theirs]
    assert found(signed_in, strategy="soft") == [soft]
    assert found(signed_in, tag="nightly") == [hash_, soft]
    assert found(signed_in, author="bert") == [theirs]
    assert found(signed_in, machine="H100") == [theirs, hash_, soft]
    assert found(signed_in, q="mine has") == [hash_]
    assert found(signed_in, q=f"#{mine.pk}") == [hash_, soft]
    assert found(signed_in, q="nothing like it") == []


@pytest.mark.parametrize(("name", "value"), [("model", "gpt-5"), ("strategy", "x"), ("machine", "x"), ("author", "x")])
def test_a_filter_that_makes_no_sense_lists_nothing_and_says_so(
    signed_in: Any, member: Any, name: str, value: str
) -> None:
    done(member)
    response = signed_in.get(BROWSE, {name: value})
    assert "a filter above makes no sense" in text_of(response)
    assert "No run passes these filters. Show all" in text_of(signed_in.get(BROWSE, {"q": "nothing like it"}))


def test_ticks_stay_while_one_looks_for_more(signed_in: Any, member: Any) -> None:
    row = done(member, title="first")
    ticked = row.runs.order_by("position")[0].pk
    done(member, title="second")
    response = signed_in.get(BROWSE, {"q": "second", "pick": str(ticked)})
    assert [one["pk"] for one in response.context["picked"]] == [ticked]
    assert f'value="{ticked}" aria-label="gate_up at 1×16 of first" checked' in response.content.decode()
    assert {title for title, _, _ in found(signed_in, q="second", pick=str(ticked))} == {"second"}
    assert ticked not in [one["pk"] for one in signed_in.get(BROWSE, {"pick": str(ticked)}).context["rows"]]


def test_ticked_runs_are_compared_without_a_script(signed_in: Any, member: Any) -> None:
    numbers = list(done(member).runs.order_by("position").values_list("pk", flat=True))
    response = signed_in.get(BROWSE, {"pick": numbers[:2], "then": "compare", "q": ""})
    assert response.url == f"/compare/?runs={numbers[0]},{numbers[1]}"
    response = signed_in.get(BROWSE, {"pick": numbers[0], "then": "compare"})
    assert response.status_code == 422
    assert "Tick two runs or more to compare them." in text_of(response)


def test_picked_runs_may_be_written_short(signed_in: Any, member: Any) -> None:
    numbers = list(done(member).runs.order_by("position").values_list("pk", flat=True))
    response = signed_in.get(BROWSE, {"pick": f"{numbers[0]}-{numbers[2]}"})
    assert [one["pk"] for one in response.context["picked"]] == numbers[:3]
    assert "is not the number of a run" in text_of(signed_in.get(BROWSE, {"pick": "x"}))


@pytest.mark.parametrize("count", [1, 15])
def test_the_list_is_paged_and_its_queries_do_not_grow(
    signed_in: Any, member: Any, count: int, django_assert_num_queries: Any
) -> None:
    for _ in range(count):
        done(member)
    # session, user; authors, machines, tags; picked; count, rows
    with django_assert_num_queries(7):
        text = text_of(signed_in.get(BROWSE))
    assert ("page 1 of 3, 60 runs Older" in text) == (count == 15)


def test_the_part_that_changes_is_asked_for_alone(signed_in: Any, member: Any) -> None:
    done(member)
    response = signed_in.get(BROWSE, {"q": "fus"}, HTTP_HX_REQUEST="true")
    assert response.content.decode().strip().startswith('<div id="rows">')
