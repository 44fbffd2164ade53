"""Sign in, by password or by a link that works once; sign out; choose a password."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, SetPasswordForm
from django.contrib.auth.views import LoginView
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from django.views.generic import FormView

from webapp.accounts.models import SignInLink, User


class SignIn(LoginView):
    template_name = "accounts/sign_in.html"
    redirect_authenticated_user = True

    def get_form(self, form_class: type[AuthenticationForm] | None = None) -> AuthenticationForm:
        form = super().get_form(form_class)
        form.label_suffix = ""
        return form


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
        form.fields["new_password1"].help_text = "At least 10 characters; not common, not only digits, not your name."
        form.fields["new_password2"].help_text = ""
        return form

    def form_valid(self, form: Any) -> HttpResponse:
        user = form.save()
        update_session_auth_hash(self.request, user)  # this session goes on, the user's others end
        messages.success(self.request, "Your password is set.")
        return super().form_valid(form)
