"""The team, its tokens and who did what, over the API."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from pydantic import BaseModel, Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp.accounts import members, tokens
from webapp.accounts.members import InvitationForm
from webapp.accounts.models import Deed, Token, User
from webapp.accounts.models import Role as Roles
from webapp.accounts.roles import member, needs
from webapp.api.answers import Asked, Page, accepted, asked, made, one, page
from webapp.api.once import once
from webapp.api.schema import CURSOR, KEY, PAGE_SIZE, made_once, problems

Role = Literal["viewer", "runner", "admin"]


class MemberState(BaseModel):
    """A member of the team."""

    id: int
    username: str
    role: Role
    is_active: bool = Field(description="False: shut out.")
    last_login: datetime | None = Field(description="In the browser.")
    email: str | None = Field(description="For administrators to see.")

    @classmethod
    def seen(cls, user: User, by: User) -> MemberState:
        names = cls.model_fields.keys() - {"email"}
        return cls(**{name: getattr(user, name) for name in names}, email=user.email if by.is_admin else None)


class LinkState(BaseModel):
    """A link that lets a member in, once."""

    member: MemberState
    link: str | None = Field(description="Shown only now; null where an earlier request with this key showed it.")
    sent: bool = Field(description="Whether it went by e-mail, too.")


class TokenState(BaseModel):
    """An API token, without the token itself."""

    id: int
    name: str
    user: str
    prefix: str = Field(description="What it begins with.")
    scopes: list[str]
    state: Literal["valid", "revoked", "expired"]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")

    @classmethod
    def of(cls, token: Token) -> TokenState:
        names = cls.model_fields.keys() - {"user"}
        return cls(**{name: getattr(token, name) for name in names}, user=token.user.get_username())


class DeedState(BaseModel):
    """Something that a member did."""

    at: datetime
    member: str
    action: str
    subject: str = Field(description="What it was done to, as it was called then.")
    url: str = Field(description="Its page; empty where it has none.")

    @classmethod
    def of(cls, deed: Deed) -> DeedState:
        return cls(at=deed.at, member=deed.name, action=deed.action, subject=deed.subject, url=deed.address)


class MemberPage(Page):
    results: list[MemberState]


class TokenPage(Page):
    results: list[TokenState]


class DeedPage(Page):
    results: list[DeedState]


class InvitationAsked(Asked):
    """A new member."""

    username: str = Field(description="For signing in: 1 to 150 letters, digits and @ . + - _")
    email: str = Field(default="", description="For the link, and for resets of the password.")
    role: Role = "runner"


class RoleAsked(Asked):
    role: Role


class MemberList(APIView):
    @extend_schema(
        operation_id="team_list", parameters=[CURSOR, PAGE_SIZE], responses={200: MemberPage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """Who belongs to the team, and who did."""
        by = member(request)
        return page(request, self, User.objects.all(), lambda user: MemberState.seen(user, by))


@needs(Roles.ADMIN)
class Invite(APIView):
    @extend_schema(
        operation_id="team_invite",
        parameters=[KEY],
        request=InvitationAsked,
        responses=made_once(LinkState, 413, 422, done="invited"),
    )
    def post(self, request: Request) -> Response:
        """A new member, who comes in by the link in the answer."""
        by = member(request)

        def make() -> User:
            form = InvitationForm(asked(request, InvitationAsked).model_dump())
            return members.invite(by, accepted(form))

        user, is_new = once(request, User, make)
        if not is_new:
            return one(LinkState(member=MemberState.seen(user, by), link=None, sent=False))
        return made(_link(members.invitation(by, user, request.build_absolute_uri), by), is_new)


@needs(Roles.ADMIN)
class Link(APIView):
    @extend_schema(operation_id="team_link", request=None, responses={200: LinkState, **problems(404)})
    def post(self, request: Request, pk: int) -> Response:
        """Let somebody in who lost the link or the password; earlier links end."""
        by = member(request)
        return one(_link(members.let_in(by, members.other(by, pk), request.build_absolute_uri), by))


@needs(Roles.ADMIN)
class MemberRole(APIView):
    @extend_schema(operation_id="team_role", request=RoleAsked, responses={200: MemberState, **problems(404, 413, 422)})
    def post(self, request: Request, pk: int) -> Response:
        """Give somebody else another role."""
        by = member(request)
        user = members.other(by, pk)
        members.make(by, user, Roles(asked(request, RoleAsked).role))
        return one(MemberState.seen(user, by))


@needs(Roles.ADMIN)
class ShutOut(APIView):
    @extend_schema(operation_id="team_shut_out", request=None, responses={200: MemberState, **problems(404)})
    def post(self, request: Request, pk: int) -> Response:
        """End somebody's sessions, links and tokens. What they made stays."""
        return _switched(request, pk, is_active=False)


@needs(Roles.ADMIN)
class TakeBack(APIView):
    @extend_schema(operation_id="team_take_back", request=None, responses={200: MemberState, **problems(404)})
    def post(self, request: Request, pk: int) -> Response:
        """Let somebody sign in again who was shut out."""
        return _switched(request, pk, is_active=True)


@needs(Roles.ADMIN)
class DeedList(APIView):
    @extend_schema(
        operation_id="deeds_list", parameters=[CURSOR, PAGE_SIZE], responses={200: DeedPage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """Who queued, canceled, changed and invited, the latest first."""
        return page(request, self, Deed.objects.all(), DeedState.of)


class TokenList(APIView):
    @extend_schema(
        operation_id="tokens_list", parameters=[CURSOR, PAGE_SIZE], responses={200: TokenPage, **problems(404)}
    )
    def get(self, request: Request) -> Response:
        """One's own tokens, or everybody's for administrators."""
        return page(request, self, tokens.seen_by(member(request)), TokenState.of)


@needs(Roles.VIEWER)
class Revoke(APIView):
    @extend_schema(operation_id="tokens_revoke", request=None, responses={200: TokenState, **problems(404)})
    def post(self, request: Request, pk: int) -> Response:
        """End one's own token, or anybody's for administrators; the one that asks as well."""
        token = get_object_or_404(Token.objects.select_related("user"), pk=pk)
        tokens.revoke(token, member(request))
        token.refresh_from_db(fields=["revoked_at"])
        return one(TokenState.of(token))


def _link(invitation: members.Invitation, by: User) -> LinkState:
    return LinkState(member=MemberState.seen(invitation.user, by), link=invitation.link, sent=invitation.sent)


def _switched(request: Request, pk: int, is_active: bool) -> Response:
    by = member(request)
    user = members.other(by, pk)
    members.switch(by, user, is_active)
    user.refresh_from_db(fields=["is_active"])
    return one(MemberState.seen(user, by))
