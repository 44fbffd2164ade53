"""Rows that all tests of a class begin with: made once, and each test is rolled back to them (``kept_rows``)."""

from __future__ import annotations

import pytest

from webapp.accounts.models import User


class OfKeptMember:
    """Tests whose ``member`` is the one to whom the rows of their class belong."""

    @pytest.fixture
    def member(self, kept_member: User) -> User:
        return User.objects.get(pk=kept_member.pk)
