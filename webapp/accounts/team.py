"""The team's page: who belongs to it, what an administrator does about that, and who did what."""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from webapp.accounts import mail, members
from webapp.accounts.members import Invitation, InvitationForm
from webapp.accounts.models import INVITATION_LIFETIME, Deed, Role, User
from webapp.accounts.roles import member, needs

DEEDS_PER_PAGE = 50


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
    by = member(request)
    return _page(request, invitation=members.invitation(by, members.invite(by, form), request.build_absolute_uri))


@never_cache
@needs(Role.ADMIN)
@require_POST
def new_link(request: HttpRequest, pk: int) -> HttpResponse:
    """Let somebody in who lost the link or the password."""
    user = members.other(member(request), pk)
    return _page(request, invitation=members.let_in(member(request), user, request.build_absolute_uri))


@needs(Role.ADMIN)
@require_POST
def change_role(request: HttpRequest, pk: int) -> HttpResponse:
    user, role = members.other(member(request), pk), request.POST.get("role", "")
    if role not in Role:
        messages.error(request, f"Not changed: {role!r} is not one of {', '.join(Role)}.")
    elif members.make(member(request), user, Role(role)):
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


def _switched(request: HttpRequest, pk: int, is_active: bool) -> HttpResponse:
    user = members.other(member(request), pk)
    members.switch(member(request), user, is_active)
    messages.success(request, f"{user} {'may sign in again' if is_active else 'is shut out'}.")
    return redirect("team:list")
