"""Sign in, by password or by a link that works once; sign out; choose a password."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, SetPasswordForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import ValidationError
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from django.views.generic import FormView

from webapp.accounts import throttle
from webapp.accounts.models import SignInLink, User

PASSWORD_HELP = "At least 10 characters; not common, not only digits, not your name."


def too_many(wait: timedelta) -> str:
    """What is said to who tries too often."""
    minutes = math.ceil(wait / timedelta(minutes=1))
    return f"Too many tries. Wait {minutes} minute{'s' if minutes > 1 else ''}, then try again."


class SignInForm(AuthenticationForm):
    """Name and password, tried so often and no oftener; ``wait`` is how long it is too often by."""

    wait: timedelta | None = None

    def clean(self) -> dict[str, Any]:
        name = self.cleaned_data.get("username")
        if name is None:
            return self.cleaned_data
        assert self.request is not None
        self.wait = throttle.admit(name, throttle.address_of(self.request))
        if self.wait is not None:
            raise ValidationError(too_many(self.wait))
        cleaned = super().clean()
        throttle.forget(name)
        return cleaned


class SignIn(LoginView):
    template_name = "accounts/sign_in.html"
    redirect_authenticated_user = True
    authentication_form = SignInForm

    def get_form(self, form_class: type[AuthenticationForm] | None = None) -> AuthenticationForm:
        form = super().get_form(form_class)
        form.label_suffix = ""
        return form

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        assert isinstance(form, SignInForm)
        response = super().form_invalid(form)
        if form.wait is not None:
            response.status_code = 429
            response["Retry-After"] = str(math.ceil(form.wait.total_seconds()))
        return response


@require_GET  # not HEAD: a preview of the link must not use it up
@never_cache
@login_not_required
def sign_in_link(request: HttpRequest, token: str) -> HttpResponse:
    """Let in whoever brings a valid token, and use it up."""
    user = SignInLink.redeem(token)
    if user is None:
        return render(request, "accounts/link_refused.html", status=403)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return redirect("home")


class Password(FormView):
    """A first password for someone who came by a link, or a new one for who has one."""

    template_name = "accounts/password.html"
    success_url = reverse_lazy("home")

    def get_form_class(self) -> type[BaseForm]:
        assert isinstance(self.request.user, User)  # the sign-in middleware sees to it
        return PasswordChangeForm if self.request.user.has_usable_password() else SetPasswordForm

    def get_form_kwargs(self) -> dict[str, Any]:
        return super().get_form_kwargs() | {"user": self.request.user, "label_suffix": ""}

    def get_form(self, form_class: type[BaseForm] | None = None) -> BaseForm:
        form = super().get_form(form_class)
        form.fields["new_password1"].help_text = PASSWORD_HELP
        form.fields["new_password2"].help_text = ""
        return form

    def form_valid(self, form: Any) -> HttpResponse:
        user = form.save()
        update_session_auth_hash(self.request, user)  # this session goes on, the user's others end
        messages.success(self.request, "Your password is set.")
        return super().form_valid(form)
