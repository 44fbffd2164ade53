"""What a member does with an experiment: run it again, describe it, delete it and bring it back."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.webapp.experiments import make
from tests.webapp.experiments.rows import MACHINE, done, measuring, put, text_of, title_of
from webapp.experiments import machines, queue, upkeep
from webapp.experiments.models import Experiment, Run, State

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


def do(client: Any, row: Experiment, what: str, follow: bool = True, **sent: str) -> Any:
    return client.post(f"{row.get_absolute_url()}{what}/", sent, follow=follow)


# Run again


def test_an_ended_experiment_runs_again_as_one_of_its_own(signed_in: Any, member: Any, django_user_model: Any) -> None:
    row = done(django_user_model.objects.create_user("bert"))
    upkeep.describe(row.pk, title="Fusion", tags=["nightly"], notes="for the first one only")
    response = do(signed_in, row, "rerun", follow=False)
    again = Experiment.objects.get(state=State.QUEUED)
    assert response.url == again.get_absolute_url()
    assert again.document == row.document
    assert (again.author, again.pool, again.tags, again.notes) == (member, row.pool, ["nightly"], "")
    assert (again.plan, again.likeness, again.model_names) == (row.plan, row.likeness, row.model_names)


def test_what_can_not_run_any_more_is_refused_in_one_sentence(signed_in: Any, member: Any) -> None:
    base = {"model": "olmoe-1b-7b", "workload": {"trace": "mine", "requests": 1}}
    row = queue.enqueue(make.experiment(traces=frozenset(["mine"]), base=base), author=member)  # not here
    assert "Not queued: base.workload.trace: 'mine' is not one of" in text_of(do(signed_in, row, "rerun"))
    assert Experiment.objects.count() == 1


def test_what_no_longer_fits_is_refused_too(signed_in: Any, member: Any) -> None:
    row = put(member)
    machines.register_this(MACHINE | {"memory_bytes": 1_000_000_000}, row.pool)
    text = text_of(do(signed_in, row, "rerun"))
    assert "Not queued: measuring olmoe-1b-7b needs" in text
    assert "1.0 GB free." in text


def test_only_ended_experiments_offer_it(signed_in: Any, member: Any) -> None:
    assert "Run again" in text_of(signed_in.get(done(member).get_absolute_url()))
    assert "Run again" not in text_of(signed_in.get(put(member).get_absolute_url()))


# Title, tags and notes


def test_new_words_are_kept_and_shown(signed_in: Any, member: Any) -> None:
    row = put(member)
    page = do(
        signed_in, row, "describe", title=" Better name ", tags="Nightly, h100,, nightly", notes="<b>first</b>\nrun"
    )
    row.refresh_from_db()
    assert (row.title, row.tags, row.notes) == ("Better name", ["nightly", "h100"], "<b>first</b>\nrun")
    text = text_of(page)
    assert "Better name" in text
    assert "<b>first</b> run" in text
    assert 'href="/experiments/?tag=nightly"' in page.content.decode()


def test_the_title_is_the_documents_too_and_nothing_else_of_it_changes(signed_in: Any, member: Any) -> None:
    row = done(member)
    do(signed_in, row, "describe", title="Better name")
    document = json.loads(signed_in.get(f"{row.get_absolute_url()}experiment/").content)
    assert document == make.experiment(title="Better name").document()
    row.refresh_from_db()
    assert row.likeness == put(member).likeness


def test_the_form_stands_in_place_of_the_words(signed_in: Any, member: Any) -> None:
    row = put(member)
    upkeep.describe(row.pk, title="Fusion", tags=["a", "b"], notes="note")
    part = signed_in.get(f"{row.get_absolute_url()}describe/", HTTP_HX_REQUEST="true")
    html = part.content.decode()
    assert html.strip().startswith('<form id="about"')
    for shown in ('value="Fusion"', 'value="a, b"', "note</textarea>"):
        assert shown in html
    assert "HX-Request" in part["Vary"]


def test_saved_in_place_the_words_come_back_with_the_new_heading(signed_in: Any, member: Any) -> None:
    row = put(member)
    sent = {"title": "Better name", "tags": "new", "notes": ""}
    part = signed_in.post(f"{row.get_absolute_url()}describe/", sent, HTTP_HX_REQUEST="true").content.decode()
    assert '<div id="about">' in part
    assert '<h1 id="name" hx-swap-oob="true">Better name</h1>' in part
    assert "<title>Queued · Better name · Moescope</title>" in part
    assert "<html" not in part


def test_without_htmx_the_form_is_a_page(signed_in: Any, member: Any) -> None:
    response = signed_in.get(f"{put(member).get_absolute_url()}describe/")
    assert title_of(response) == "Describe Fusion · Moescope"
    assert response.content.decode().count("<h1") == 1


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("title", "", "This field is required."),
        ("title", "x" * 201, "at most 200 characters"),
        ("title", "two\nlines", "A title is one line of text."),
        ("tags", "a" * 41, f"'{'a' * 41}' is not allowed; a tag has 1 to 40 letters"),
        ("tags", "fine, <b>", "'<b>' is not allowed"),
        ("tags", ",".join(map(str, range(11))), "11 tags are given; at most 10 are allowed."),
        ("notes", "x" * 10_001, "at most 10000 characters"),
    ],
)
def test_bad_words_are_refused_beside_their_field(
    signed_in: Any, member: Any, field: str, value: str, sentence: str
) -> None:
    row = put(member)
    response = do(signed_in, row, "describe", **({"title": "Fine", "tags": "", "notes": ""} | {field: value}))
    assert response.status_code == 422
    assert sentence in response.context["form"].errors[field][0]
    row.refresh_from_db()
    assert (row.title, row.tags, row.notes) == ("Fusion", [], "")


# Delete, and undo


def test_a_deleted_experiment_is_gone_and_can_be_brought_back_from_the_message(signed_in: Any, member: Any) -> None:
    row = done(member)
    response = do(signed_in, row, "delete")
    assert response.redirect_chain == [("/experiments/", 302)]
    assert "Deleted “Fusion”; it is kept for 7 days. Undo" in text_of(response)
    assert f'action="{row.get_absolute_url()}restore/"' in response.content.decode()
    for address in ("", "live/", "result/", "experiment/", "describe/"):
        assert signed_in.get(f"{row.get_absolute_url()}{address}").status_code == 404
    for action in ("cancel", "rerun", "describe", "delete"):
        assert do(signed_in, row, action).status_code == 404
    assert signed_in.get(f"/experiments/new/?from={row.pk}").status_code == 404

    assert "gate_up has the shortest median step" in text_of(do(signed_in, row, "restore"))
    assert Run.objects.count() == 4


def test_what_waits_is_canceled_with_its_deletion(signed_in: Any, member: Any) -> None:
    row = put(member)
    do(signed_in, row, "delete")
    assert queue.claim("default") is None
    assert "Canceled before it ran." in text_of(do(signed_in, row, "restore"))


def test_what_runs_is_asked_to_stop_with_its_deletion(signed_in: Any, member: Any) -> None:
    row = measuring(member)
    do(signed_in, row, "delete")
    assert queue.beat(queue.fence_of(row), {}) == queue.Order.CANCEL


def test_what_was_never_deleted_is_only_shown(signed_in: Any, member: Any) -> None:
    row = put(member)
    assert do(signed_in, row, "restore", follow=False).url == row.get_absolute_url()
    row.refresh_from_db()
    assert row.state == State.QUEUED


def test_the_sweep_removes_for_good_what_was_deleted_a_week_ago(member: Any) -> None:
    old, new, kept = done(member), done(member), done(member)
    upkeep.delete(old.pk), upkeep.delete(new.pk)
    Experiment.objects.filter(pk=new.pk).update(deleted_at=timezone.now() - timedelta(days=6))
    Experiment.objects.filter(pk=old.pk).update(deleted_at=timezone.now() - timedelta(days=8))
    assert upkeep.purge() == 1
    assert set(Experiment.objects.all()) == {new, kept}
    assert Run.objects.count() == 8
    assert upkeep.purge() == 0


def test_what_a_worker_still_holds_is_not_pulled_away_from_it(member: Any) -> None:
    row = measuring(member)
    upkeep.delete(row.pk)
    assert upkeep.purge(timezone.now() + timedelta(days=8)) == 0
    queue.cancel(queue.fence_of(row))
    assert upkeep.purge(timezone.now() + timedelta(days=8)) == 1


@pytest.mark.parametrize("action", ["cancel", "rerun", "delete", "restore"])
def test_a_link_alone_changes_nothing(signed_in: Any, member: Any, action: str) -> None:
    assert signed_in.get(f"{put(member).get_absolute_url()}{action}/").status_code == 405
