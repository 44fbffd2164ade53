"""Who may do what. Viewers read; runners queue, and change what is theirs; administrators do everything.

A view says what it takes with `needs`. One that says nothing takes a viewer to read, and a runner for everything else,
so that a page that somebody forgot to mark lets no viewer change anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from webapp.accounts.models import Role, User

READS = frozenset({"GET", "HEAD", "OPTIONS"})

View = TypeVar("View", bound=Callable[..., Any])


def needs(role: Role) -> Callable[[View], View]:
    """Marks a view that takes a member of ``role`` or above, whatever the request."""

    def mark(view: View) -> View:
        view.needs_role = role  # type: ignore[attr-defined]
        return view

    return mark


def needed(view: Callable[..., Any], method: str) -> Role:
    """The least role that ``view`` answers to."""
    stated: Role | None = getattr(view, "needs_role", None)
    return stated or (Role.VIEWER if method in READS else Role.RUNNER)


def require(user: User, role: Role) -> None:
    """Raise `PermissionDenied`, in a sentence, unless ``user`` is of ``role`` or above."""
    if not user.is_at_least(role):
        raise PermissionDenied(f"This takes {role.with_article}; you are {Role(user.role).with_article}.")


def may_change(user: User, author_id: int | None) -> bool:
    """Whether ``user`` may change what the member with that key made, or nobody in particular (None)."""
    return user.is_at_least(Role.ADMIN) or (user.is_at_least(Role.RUNNER) and user.pk == author_id)


def require_change(user: User, author: User | None) -> None:
    """Raise `PermissionDenied`, in a sentence, unless ``user`` may change what ``author`` made."""
    require(user, Role.RUNNER)
    if not may_change(user, author.pk if author else None):
        raise PermissionDenied(f"Only {f'{author} or ' if author else ''}an administrator may change this.")


def member(request: HttpRequest) -> User:
    """Who asks; the sign-in middleware let nobody else in."""
    assert isinstance(request.user, User)
    return request.user
