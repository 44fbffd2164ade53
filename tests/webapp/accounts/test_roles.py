"""What each role may do, at every address of the site."""

from __future__ import annotations

from typing import Any

import pytest

from tests.webapp.experiments.rows import done, put, text_of
from tests.webapp.test_house import OPEN_TO_STRANGERS, addresses, by_token
from webapp.accounts.models import Role, User
from webapp.traces.store import import_trace

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]

#: Where an address takes something else than a viewer to read and a runner to change: (to read, to change).
NEEDS = {
    "/sign-out/": (Role.VIEWER, Role.VIEWER),
    "/password/": (Role.VIEWER, Role.VIEWER),
    "/tokens/": (Role.VIEWER, Role.VIEWER),
    "/tokens/1/revoke/": (Role.VIEWER, Role.VIEWER),
    "/experiments/new/": (Role.RUNNER, Role.RUNNER),
    "/schedules/new/": (Role.RUNNER, Role.RUNNER),
    "/schedules/1/change/": (Role.RUNNER, Role.RUNNER),
    "/team/invite/": (Role.ADMIN, Role.ADMIN),
    "/team/deeds/": (Role.ADMIN, Role.ADMIN),
    **{f"/team/1/{deed}/": (Role.ADMIN, Role.ADMIN) for deed in ("role", "link", "shut-out", "take-back")},
}  # fmt: skip
USUAL = (Role.VIEWER, Role.RUNNER)
ADDRESSES = [address for address in addresses() if address not in OPEN_TO_STRANGERS | by_token()]


@pytest.fixture
def bert(django_user_model: Any) -> User:
    return django_user_model.objects.create_user("bert", role=Role.RUNNER)


def as_a(client: Any, role: Role) -> User:
    user = User.objects.create_user("carl", role=role)
    client.force_login(user)
    return user


def test_only_addresses_that_exist_are_listed() -> None:
    assert NEEDS.keys() <= set(ADDRESSES)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_answers_those_who_may_and_no_others(client: Any, address: str, role: Role) -> None:
    user = as_a(client, role)
    read, change = NEEDS.get(address, USUAL)
    for method, needed in (("get", read), ("head", read), ("post", change), ("put", change), ("delete", change)):
        client.force_login(user)
        refused = getattr(client, method)(address).status_code == 403
        assert refused == (not user.is_at_least(needed)), method


def test_who_may_not_is_told_in_a_sentence(client: Any) -> None:
    as_a(client, Role.VIEWER)
    text = text_of(client.get("/experiments/new/"))
    assert "Not allowed here This takes a runner; you are a viewer." in text


@pytest.mark.parametrize("deed", ["cancel", "delete", "describe", "restore"])
def test_a_runner_changes_only_what_is_their_own(client: Any, bert: User, deed: str) -> None:
    row = put(bert)
    as_a(client, Role.RUNNER)
    response = client.post(f"{row.get_absolute_url()}{deed}/")
    assert response.status_code == 403
    assert "Only bert or an administrator may change this." in text_of(response)
    row.refresh_from_db()
    assert (row.state, row.deleted_at) == ("queued", None)


def test_what_nobody_in_particular_made_is_the_administrators(client: Any) -> None:
    row = put(None)
    as_a(client, Role.RUNNER)
    response = client.post(f"{row.get_absolute_url()}cancel/")
    assert "Only an administrator may change this." in text_of(response)


def test_an_administrator_changes_everything(client: Any, bert: User) -> None:
    row = put(bert)
    as_a(client, Role.ADMIN)
    client.post(f"{row.get_absolute_url()}cancel/")
    row.refresh_from_db()
    assert row.state == "canceled"


def test_a_trace_is_deleted_by_who_imported_it(client: Any, bert: User, tmp_path: Any) -> None:
    (tmp_path / "x.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n")
    import_trace(tmp_path / "x.csv", by=bert)
    as_a(client, Role.RUNNER)
    assert client.post("/traces/requests/x/delete/").status_code == 403
    client.force_login(bert)
    assert client.post("/traces/requests/x/delete/").status_code == 302


def test_a_viewer_is_offered_nothing_that_would_be_refused(client: Any, bert: User) -> None:
    row = done(bert)
    as_a(client, Role.VIEWER)
    for address in ("/", "/experiments/", row.get_absolute_url(), row.machine.get_absolute_url(), "/traces/", "/team/"):
        page = client.get(address).content.decode()
        assert page.count('method="post"') == 1, address  # to sign out
        assert "/experiments/new/" not in page.partition("</header>")[0]


def test_a_runner_is_not_offered_what_others_made(client: Any, bert: User) -> None:
    row = put(bert)
    as_a(client, Role.RUNNER)
    page = client.get(row.get_absolute_url()).content.decode()
    for deed in ("cancel", "delete", "describe"):
        assert f"{row.get_absolute_url()}{deed}/" not in page
    client.force_login(bert)
    page = client.get(row.get_absolute_url()).content.decode()
    for deed in ("cancel", "delete", "describe"):
        assert f"{row.get_absolute_url()}{deed}/" in page
