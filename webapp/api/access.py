"""Who is let in: bearer tokens, each with its scopes, and its user's role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from webapp.accounts import roles, tokens
from webapp.accounts.models import Scope, Token, User

if TYPE_CHECKING:
    from rest_framework.views import APIView  # which loads this module, by the settings


class BearerToken(BaseAuthentication):
    """``Authorization: Bearer moe_…``"""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        kind, _, text = get_authorization_header(request).partition(b" ")
        if kind.lower() != b"bearer":
            return None
        try:
            token = tokens.check(text.strip().decode("latin-1"))
        except tokens.BadToken as error:
            raise AuthenticationFailed(str(error)) from None
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class Allowed(BasePermission):
    """The token's scope and its user's role must both do."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        token: Any = request.auth
        if not isinstance(token, Token):
            return False  # nobody was let in: answered 401
        assert request.method is not None
        needed = Scope.READ if request.method in roles.READS else Scope.RUN
        if needed not in token.scopes:
            self.message = f"This takes a token with the scope {needed.value}; yours has {', '.join(token.scopes)}."
            return False
        roles.require(token.user, roles.needed(type(view), request.method))
        return True
