"""The team: who belongs to it, and what an administrator does about that. Members never change their own role."""

from __future__ import annotations

from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.contrib.auth.hashers import make_password
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from webapp.accounts import audit, mail
from webapp.accounts.models import INVITATION_LIFETIME, Deed, Role, SignInLink, User
from webapp.accounts.roles import member, needs

DEEDS_PER_PAGE = 50
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


class RoleForm(forms.ModelForm):
    class Meta:
        model = User
        fields = ("role",)


class Invitation(NamedTuple):
    """A link that lets ``user`` in. It is shown once: only its hash is kept. ``sent``: whether it went by e-mail."""

    user: User
    link: str
    sent: bool


@require_safe
def team(request: HttpRequest) -> HttpResponse:
    return _page(request)


@never_cache
@needs(Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def invite(request: HttpRequest) -> HttpResponse:
    """A new member, who comes in by a link; the answer shows it, this once."""
    form = InvitationForm(request.POST or None)
    if not form.is_valid():
        return _page(request, form=form, status=422 if form.is_bound else 200)
    form.instance.password = make_password(None)
    with transaction.atomic():
        invited = form.save()
        audit.note(member(request), Deed.Action.INVITED, invited)
    return _page(request, invitation=_invitation(request, invited))


@never_cache
@needs(Role.ADMIN)
@require_POST
def new_link(request: HttpRequest, pk: int) -> HttpResponse:
    """Let somebody in who lost the link or the password."""
    user = _other(request, pk)
    if not user.is_active:
        raise PermissionDenied(f"{user} is shut out; let them in again first.")
    audit.note(member(request), Deed.Action.LET_IN, user)
    return _page(request, invitation=_invitation(request, user))


@needs(Role.ADMIN)
@require_POST
def change_role(request: HttpRequest, pk: int) -> HttpResponse:
    user = _other(request, pk)
    before, form = Role(user.role), RoleForm(request.POST, instance=user)
    if not form.is_valid():
        messages.error(request, f"Not changed: {request.POST.get('role', '')!r} is not one of {', '.join(Role)}.")
    elif user.role != before:
        with transaction.atomic():
            form.save()
            audit.note(member(request), _MADE[Role(user.role)], user)
        messages.success(request, f"{user} is {Role(user.role).with_article} now.")
    return redirect("team:list")


@needs(Role.ADMIN)
@require_POST
def shut_out(request: HttpRequest, pk: int) -> HttpResponse:
    """End a member's sessions, links and tokens. What they made stays."""
    return _switched(request, pk, is_active=False)


@needs(Role.ADMIN)
@require_POST
def take_back(request: HttpRequest, pk: int) -> HttpResponse:
    """Let somebody sign in again who was shut out."""
    return _switched(request, pk, is_active=True)


@needs(Role.ADMIN)
@require_safe
def deeds(request: HttpRequest) -> HttpResponse:
    """Who queued, canceled, changed and invited, latest first."""
    rows = Paginator(Deed.objects.all(), DEEDS_PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "accounts/deeds.html", {"rows": rows})


def _page(
    request: HttpRequest,
    form: InvitationForm | None = None,
    invitation: Invitation | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "members": User.objects.order_by("-is_active", "username"),
        "form": form or InvitationForm(),
        "invitation": invitation,
        "days": INVITATION_LIFETIME.days,
        "roles": Role,
        "mails": mail.is_set_up(),
    }
    return render(request, "accounts/team.html", context, status=status)


def _invitation(request: HttpRequest, user: User) -> Invitation:
    path = reverse("sign-in-link", args=[SignInLink.issue(user, INVITATION_LIFETIME)])
    link = request.build_absolute_uri(path)
    text = (
        f"{member(request)} invites you to Moescope, as {user}.\n\nThis link lets you in, once, within "
        f"{INVITATION_LIFETIME.days} days; then set a password:\n\n{link}\n"
    )
    return Invitation(user, link, mail.send("An invitation to Moescope", text, user.email))


def _switched(request: HttpRequest, pk: int, is_active: bool) -> HttpResponse:
    user = _other(request, pk)
    with transaction.atomic():
        User.objects.filter(pk=user.pk).update(is_active=is_active)
        SignInLink.objects.filter(user=user).delete()
        audit.note(member(request), Deed.Action.TAKEN_BACK if is_active else Deed.Action.SHUT_OUT, user)
    messages.success(request, f"{user} {'may sign in again' if is_active else 'is shut out'}.")
    return redirect("team:list")


def _other(request: HttpRequest, pk: int) -> User:
    """The member of that key. Raises `PermissionDenied` for oneself, so that an administrator is always left."""
    if pk == member(request).pk:
        raise PermissionDenied("Another administrator has to change that for you.")
    return get_object_or_404(User, pk=pk)
