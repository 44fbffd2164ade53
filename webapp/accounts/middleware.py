"""Strangers see the sign-in page, whatever they ask for and however they ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest
from django_htmx.http import HttpResponseClientRedirect


class SignInRequiredMiddleware(LoginRequiredMiddleware):
    """Django's own, except that an htmx request moves the whole page instead of filling its fragment with a form."""

    def handle_no_permission(
        self, request: HttpRequest, view_func: Callable[..., Any]
    ) -> Any:  # either kind of redirect
        if not request.htmx:  # type: ignore[attr-defined]
            return super().handle_no_permission(request, view_func)
        page = request.htmx.current_url_abs_path or "/"  # type: ignore[attr-defined]
        return HttpResponseClientRedirect(redirect_to_login(page, self.get_login_url(view_func)).url)
