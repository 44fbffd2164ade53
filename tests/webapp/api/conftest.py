from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from webapp.accounts import tokens
from webapp.accounts.models import Scope, User

API = "/api/v1"


@pytest.fixture(autouse=True)
def only_the_row_is_queued(no_broker: None) -> None:
    """Nothing here waits for a worker."""


def client_of(user: User, *scopes: Scope) -> Client:
    """A program with a token of ``user``, with both scopes unless told otherwise."""
    _, text = tokens.issue(user, "test", scopes or list(Scope), None)
    return Client(headers={"authorization": f"Bearer {text}"})


@pytest.fixture
def api(member: Any) -> Client:
    """A program with a token of ``member`` that may read and run."""
    return client_of(member)
