"""The list: filters in the address, and a constant number of queries."""

from __future__ import annotations

from typing import Any

import pytest

from tests.webapp.experiments import make
from tests.webapp.experiments.rows import done, ended, measuring, put, run, text_of
from webapp.experiments import queue, upkeep
from webapp.experiments.models import State

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]
LIST = "/experiments/"


def titles(client: Any, **filters: str) -> list[str]:
    return [row.title for row in client.get(LIST, filters).context["rows"]]


def test_an_empty_list_offers_the_first_experiment(signed_in: Any) -> None:
    assert "Queue the first experiment" in text_of(signed_in.get(LIST))


def test_the_list_has_state_title_models_and_author(signed_in: Any, member: Any) -> None:
    put(member, vary={"field": "model", "values": ["olmoe-1b-7b", "mixtral-8x7b"]}, title="Two models")
    assert "queued Two models olmoe-1b-7b, mixtral-8x7b 4 anna" in text_of(signed_in.get(LIST))


@pytest.mark.parametrize("count", [1, 30])
def test_the_list_is_paged_and_its_queries_do_not_grow(
    signed_in: Any, member: Any, count: int, django_assert_num_queries: Any
) -> None:
    for number in range(count):
        put(member, title=f"Number {number}")
    with django_assert_num_queries(6):  # session, user; authors, tags; count, rows
        page = text_of(signed_in.get(LIST))
    assert f"Number {count - 1}" in page
    assert ("page 1 of 2, 30 experiments Older" in page) == (count == 30)
    assert "Number 0" in text_of(signed_in.get(f"{LIST}?page=2"))


def test_states_are_filtered(signed_in: Any, member: Any) -> None:
    done(member, title="well")
    ended(run(member, title="badly"), State.FAILED)
    ended(run(member, title="stopped"))
    storing = measuring(member, title="stores")
    queue.begin_ingest(queue.fence_of(storing))
    measuring(member, title="measures")
    put(member, title="waits")
    found = {state: titles(signed_in, state=state) for state in ("done", "failed", "canceled", "running", "queued")}
    assert found == {
        "done": ["well"], "failed": ["badly"], "canceled": ["stopped"], "running": ["measures", "stores"],
        "queued": ["waits"],
    }  # fmt: skip
    assert len(titles(signed_in)) == len(titles(signed_in, state="")) == 6


def test_models_are_found_among_the_varied_ones_too(signed_in: Any, member: Any) -> None:
    put(member, title="one")
    put(member, title="two", vary={"field": "model", "values": ["olmoe-1b-7b", "mixtral-8x7b"]})
    assert titles(signed_in, model="olmoe-1b-7b") == ["two", "one"]
    assert titles(signed_in, model="mixtral-8x7b") == ["two"]


def test_authors_and_tags_are_filtered(signed_in: Any, member: Any, django_user_model: Any) -> None:
    other = django_user_model.objects.create_user("bert")
    put(member, title="mine")
    queue.enqueue(make.experiment(title="theirs"), author=other, tags=["nightly", "gpu"])
    assert titles(signed_in, author="bert") == ["theirs"]
    assert titles(signed_in, author="anna") == ["mine"]
    assert titles(signed_in, tag="gpu") == ["theirs"]
    assert titles(signed_in, tag="gpu", author="anna") == []


@pytest.mark.parametrize(
    ("words", "found"),
    [("zentorch", ["Kernels"]), ("KERN", ["Kernels"]), ("shortest every", ["Answered"]), ("zentorch every", []),
     ("100%", [])],
)  # fmt: skip
def test_every_word_is_looked_for_in_title_notes_and_answer(
    signed_in: Any, member: Any, words: str, found: list[str]
) -> None:
    done(member, title="Answered")
    ended(run(member))
    upkeep.describe(put(member).pk, title="Kernels", tags=[], notes="with zentorch")
    assert titles(signed_in, q=words) == found


def test_a_number_finds_its_experiment(signed_in: Any, member: Any) -> None:
    row = put(member, title="the one")
    put(member, title="another")
    assert titles(signed_in, q=f"#{row.pk}") == titles(signed_in, q=str(row.pk)) == ["the one"]
    assert titles(signed_in, q="9" * 30) == []


def test_the_pages_keep_the_filters(signed_in: Any, member: Any) -> None:
    for _ in range(26):
        put(member)
    page = signed_in.get(LIST, {"state": "queued"}).content.decode()
    assert 'href="?state=queued&amp;page=2"' in page


def test_filters_that_nothing_passes_offer_to_show_all(signed_in: Any, member: Any) -> None:
    put(member)
    text = text_of(signed_in.get(LIST, {"q": "nothing like it"}))
    assert "No experiment passes these filters. Show all" in text


@pytest.mark.parametrize(
    ("name", "value"), [("state", "lost"), ("model", "gpt-5"), ("author", "nobody"), ("tag", "unheard-of")]
)
def test_a_filter_that_makes_no_sense_lists_nothing_and_says_so(
    signed_in: Any, member: Any, name: str, value: str
) -> None:
    put(member)
    response = signed_in.get(LIST, {name: value})
    assert list(response.context["rows"]) == []
    assert name in response.context["filter"].form.errors
    assert "a filter above makes no sense" in text_of(response)


def test_the_part_that_changes_is_asked_for_alone(signed_in: Any, member: Any) -> None:
    put(member)
    response = signed_in.get(LIST, {"q": "fus"}, HTTP_HX_REQUEST="true")
    assert response.content.decode().strip().startswith('<div id="rows">')
    assert "HX-Request" in response["Vary"]


def test_deleted_ones_are_listed_where_they_are_asked_for(signed_in: Any, member: Any) -> None:
    put(member, title="stays")
    row = put(member, title="gone")
    upkeep.delete(row.pk)
    assert titles(signed_in) == ["stays"]
    assert titles(signed_in, state="deleted") == ["gone"]
    response = signed_in.get(LIST, {"state": "deleted"})
    assert "gone bring back" in text_of(response)
    assert f'href="{row.get_absolute_url()}"' not in response.content.decode()


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize(("filters", "more"), [({"state": "queued"}, 0), ({"q": "fusion", "tag": "a"}, 1),
                                               ({"author": "anna"}, 1)])  # fmt: skip
def test_the_queries_of_a_filtered_list_do_not_grow(
    signed_in: Any, member: Any, count: int, filters: dict[str, str], more: int, django_assert_num_queries: Any
) -> None:
    for _ in range(count):
        queue.enqueue(make.experiment(), author=member, tags=["a"])
    with django_assert_num_queries(6 + more):  # the chosen author or tag is looked up
        signed_in.get(LIST, filters)
