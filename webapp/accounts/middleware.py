"""Strangers see the sign-in page, whatever they ask for and however they ask; members what their role lets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django_htmx.http import HttpResponseClientRedirect

from webapp.accounts import roles


class SignInRequiredMiddleware(LoginRequiredMiddleware):
    """Django's own, except that an htmx request moves the whole page instead of filling its fragment with a form."""

    def handle_no_permission(
        self, request: HttpRequest, view_func: Callable[..., Any]
    ) -> Any:  # either kind of redirect
        if not request.htmx:  # type: ignore[attr-defined]
            return super().handle_no_permission(request, view_func)
        page = request.htmx.current_url_abs_path or "/"  # type: ignore[attr-defined]
        return HttpResponseClientRedirect(redirect_to_login(page, self.get_login_url(view_func)).url)


class RoleMiddleware:
    """Answers 403, in a sentence, to a member whose role is not enough; see `roles`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Callable[..., Any], *args: Any) -> None:
        if request.user.is_authenticated and getattr(view, "login_required", True):
            assert request.method is not None
            roles.require(request.user, roles.needed(view, request.method))
