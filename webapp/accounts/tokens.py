"""API tokens: made, shown once, checked, revoked. The secret part is random, so a plain hash of it can't be guessed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from webapp.accounts import audit
from webapp.accounts.models import Deed, Scope, Token, User, hashed

#: ``last_used_at`` is written no oftener, so that reading stays reading.
USED_EVERY = timedelta(minutes=1)
#: What a token may do, by the most that it may.
SCOPES: dict[str, list[Scope]] = {Scope.READ: [Scope.READ], Scope.RUN: [Scope.READ, Scope.RUN]}


class BadToken(Exception):
    """Lets nobody in; the message says why."""


@transaction.atomic
def issue(user: User, name: str, scopes: Sequence[Scope], lifetime: timedelta | None) -> tuple[Token, str]:
    """A new token, and its text, which can't be had again. ``lifetime``: None for one that never expires."""
    prefix = f"moe_{secrets.token_hex(4)}"
    text = f"{prefix}_{secrets.token_urlsafe(32)}"
    expires_at = None if lifetime is None else timezone.now() + lifetime
    token = Token.objects.create(
        user=user, name=name, prefix=prefix, token_hash=hashed(text), scopes=list(scopes), expires_at=expires_at
    )
    audit.note(user, Deed.Action.MADE_TOKEN, token)
    return token, text


def check(text: str) -> Token:
    """The token with that text, with its user. Raises `BadToken` unless it lets somebody in now."""
    token = Token.objects.select_related("user").filter(token_hash=hashed(text)).first()
    if token is None:
        raise BadToken("This token is not known here.")
    if token.state != "valid":
        raise BadToken(f"This token is {token.state}.")
    if not token.user.is_active:
        raise BadToken(f"{token.user} is shut out.")
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - USED_EVERY:
        Token.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def seen_by(user: User) -> QuerySet[Token]:
    """One's own, or everybody's for administrators."""
    known = Token.objects.select_related("user")
    return known if user.is_admin else known.filter(user=user)


@transaction.atomic
def revoke(token: Token, by: User) -> None:
    """It lets nobody in any more. A second time changes nothing. Raises `PermissionDenied` for who may not."""
    if token.user != by and not by.is_admin:
        raise PermissionDenied(f"Only {token.user} or an administrator may revoke this token.")
    if Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now()):
        audit.note(by, Deed.Action.REVOKED_TOKEN, token)
