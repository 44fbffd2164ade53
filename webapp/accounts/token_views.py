"""The page of API tokens: one's own, and everybody's for administrators."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from webapp.accounts import tokens as store
from webapp.accounts.models import Role, Scope, Token, User
from webapp.accounts.roles import member, needs

LIFETIMES = {30: "30 days", 90: "90 days", 365: "a year", 0: "never"}


class TokenForm(forms.Form):
    """What a new token of ``user`` is for."""

    name = forms.CharField(label="What for", max_length=100, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    may = forms.ChoiceField(label="May", choices=[(Scope.READ, "read"), (Scope.RUN, "read, queue and change")])
    days = forms.TypedChoiceField(label="Expires in", coerce=int, choices=list(LIFETIMES.items()), initial=90)

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        if not user.may_run:
            may = self.fields["may"]
            assert isinstance(may, forms.ChoiceField)
            may.choices = [(Scope.READ, "read")]

    @property
    def lifetime(self) -> timedelta | None:
        days = self.cleaned_data["days"]
        return timedelta(days=days) if days else None


@never_cache
@needs(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """The list, and a form for one more; its answer shows the token, this once."""
    user = member(request)
    form = TokenForm(request.POST or None, user=user)
    text = ""
    if form.is_valid():
        _, text = store.issue(user, form.cleaned_data["name"], store.SCOPES[form.cleaned_data["may"]], form.lifetime)
        form = TokenForm(user=user)
    context = {"form": form, "text": text, "tokens": store.seen_by(user)}
    return render(request, "accounts/tokens.html", context, status=422 if form.errors else 200)


@needs(Role.VIEWER)
@require_POST
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """One's own, or anybody's for administrators."""
    token = get_object_or_404(Token.objects.select_related("user"), pk=pk)
    store.revoke(token, member(request))
    messages.success(request, f"{token} is revoked.")
    return redirect("tokens:list")
