"""A forgotten password: Django's own reset by e-mail, throttled as sign-in is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import PasswordResetForm
from django.contrib.auth.views import PasswordResetConfirmView, PasswordResetView
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.urls import reverse_lazy
from django.utils.decorators import method_decorator

from webapp.accounts import mail, throttle
from webapp.accounts.models import User
from webapp.accounts.views import PASSWORD_HELP, too_many

MAILED = "If a member has that address, a link is on its way to it. It works once, for three days."


class ForgottenForm(PasswordResetForm):
    """``address``: where the request comes from."""

    def __init__(self, *args: Any, address: str | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        self.address = address

    def clean(self) -> dict[str, Any]:
        if "email" in self.cleaned_data:
            wait = throttle.admit(self.cleaned_data["email"].lower(), self.address)
            if wait is not None:
                raise ValidationError(too_many(wait))
        return self.cleaned_data

    def get_users(self, email: str) -> Iterable[User]:
        """Those, too, who came by a link and never chose a password."""
        return User.objects.filter(email__iexact=email, is_active=True)


@method_decorator(login_not_required, name="dispatch")
class Forgotten(PasswordResetView):
    form_class = ForgottenForm
    template_name = "accounts/forgotten.html"
    subject_template_name = "accounts/forgotten_subject.txt"
    email_template_name = "accounts/forgotten_email.txt"
    success_url = reverse_lazy("sign-in")
    extra_context = {"mails": mail.is_set_up}

    def get_form_kwargs(self) -> dict[str, Any]:
        return super().get_form_kwargs() | {"address": throttle.address_of(self.request)}

    def form_valid(self, form: PasswordResetForm) -> HttpResponse:
        """The same answer whether a member has the address or not."""
        if not mail.is_set_up():
            return self.form_invalid(form)
        messages.info(self.request, MAILED)
        return super().form_valid(form)


@method_decorator(login_not_required, name="dispatch")
class Chosen(PasswordResetConfirmView):
    template_name = "accounts/choose_password.html"
    success_url = reverse_lazy("sign-in")

    def get_form(self, form_class: Any = None) -> Any:
        form = super().get_form(form_class)
        form.label_suffix = ""
        form.fields["new_password1"].help_text = PASSWORD_HELP
        form.fields["new_password2"].help_text = ""
        return form

    def form_valid(self, form: Any) -> HttpResponse:
        messages.success(self.request, "Your password is set; sign in with it.")
        return super().form_valid(form)
