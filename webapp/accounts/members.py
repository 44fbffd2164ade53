"""What an administrator does about the team, in the browser or over the API: the deed, and its line in the audit list.

Members never change their own role, so that an administrator is always left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django import forms
from django.contrib.auth.hashers import make_password
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.shortcuts import get_object_or_404
from django.urls import reverse

from webapp.accounts import audit, mail
from webapp.accounts.models import INVITATION_LIFETIME, Deed, Role, SignInLink, User

_MADE = {
    Role.VIEWER: Deed.Action.MADE_VIEWER,
    Role.RUNNER: Deed.Action.MADE_RUNNER,
    Role.ADMIN: Deed.Action.MADE_ADMIN,
}


class InvitationForm(forms.ModelForm):
    class Meta:
        model = User
        fields = ("username", "email", "role")
        labels = {"username": "Name", "email": "E-mail"}
        help_texts = {
            "username": "For signing in: letters, digits and @ . + - _",
            "email": "For the link, and for resets of the password; may stay empty.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        self.fields["role"].initial = Role.RUNNER


class Invitation(NamedTuple):
    """A link that lets ``user`` in. It is shown once: only its hash is kept. ``sent``: whether it went by e-mail."""

    user: User
    link: str
    sent: bool


#: From the path of a page to its whole address.
Address = Callable[[str], str]


def invite(by: User, form: InvitationForm) -> User:
    """A new member, of a valid ``form``, who has no password and comes in by an `invitation`."""
    form.instance.password = make_password(None)
    with transaction.atomic():
        invited: User = form.save()
        audit.note(by, Deed.Action.INVITED, invited)
    return invited


def let_in(by: User, user: User, address: Address) -> Invitation:
    """A new link for somebody who lost theirs, or the password. Raises `PermissionDenied` for who is shut out."""
    if not user.is_active:
        raise PermissionDenied(f"{user} is shut out; let them in again first.")
    audit.note(by, Deed.Action.LET_IN, user)
    return invitation(by, user, address)


def invitation(by: User, user: User, address: Address) -> Invitation:
    link = address(reverse("sign-in-link", args=[SignInLink.issue(user, INVITATION_LIFETIME)]))
    text = (
        f"{by} invites you to Moescope, as {user}.\n\nThis link lets you in, once, within "
        f"{INVITATION_LIFETIME.days} days; then set a password:\n\n{link}\n"
    )
    return Invitation(user, link, mail.send("An invitation to Moescope", text, user.email))


@transaction.atomic
def make(by: User, user: User, role: Role) -> bool:
    """Give ``user`` another role. False: it was theirs already."""
    if user.role == role:
        return False
    User.objects.filter(pk=user.pk).update(role=role)
    user.role = role
    audit.note(by, _MADE[role], user)
    return True


@transaction.atomic
def switch(by: User, user: User, is_active: bool) -> None:
    """Shut somebody out, which ends their sessions, links and tokens and leaves what they made; or take them back."""
    User.objects.filter(pk=user.pk).update(is_active=is_active)
    SignInLink.objects.filter(user=user).delete()
    audit.note(by, Deed.Action.TAKEN_BACK if is_active else Deed.Action.SHUT_OUT, user)


def other(by: User, pk: int) -> User:
    """The member of that key. Raises `PermissionDenied` for oneself, and `Http404`."""
    if pk == by.pk:
        raise PermissionDenied("Another administrator has to change that for you.")
    return get_object_or_404(User, pk=pk)
