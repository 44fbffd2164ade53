"""Who works here, the links and tokens that let somebody in, the tries to get in, and who did what."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import AbstractUser, UserManager
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone

LINK_LIFETIME = timedelta(hours=24)
#: Of the link that an invitation holds.
INVITATION_LIFETIME = timedelta(days=7)


class Role(models.TextChoices):
    """What a member may do, each with all that those before it may."""

    VIEWER = "viewer"  # reads
    RUNNER = "runner"  # queues, cancels and changes what is theirs
    ADMIN = "admin"  # everything, and the team

    @property
    def with_article(self) -> str:
        return {"viewer": "a viewer", "runner": "a runner", "admin": "an administrator"}[self.value]


class TeamManager(UserManager["User"]):
    use_in_migrations = False

    def create_superuser(
        self, username: str, email: str | None = None, password: str | None = None, **more: Any
    ) -> User:
        """What `createsuperuser` makes: an administrator."""
        return super().create_superuser(username, email, password, **{"role": Role.ADMIN, **more})


class User(AbstractUser):
    """A member of the team."""

    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)

    objects = TeamManager()  # type: ignore[misc]  # the base class has it as a class variable

    class Meta:
        ordering = ("username",)
        constraints = (models.CheckConstraint(name="user_role_is_known", condition=Q(role__in=Role.values)),)

    def is_at_least(self, role: Role) -> bool:
        return Role.values.index(self.role) >= Role.values.index(role)

    @property
    def may_run(self) -> bool:
        """For templates, as the next."""
        return self.is_at_least(Role.RUNNER)

    @property
    def is_admin(self) -> bool:
        return self.is_at_least(Role.ADMIN)


class SignInLink(models.Model):
    """A link that signs one user in, once. Only a hash of its token is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sign_in_links")
    token_hash = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"sign-in link of {self.user}, until {self.expires_at:%Y-%m-%d %H:%M} UTC"

    @classmethod
    def issue(cls, user: User, lifetime: timedelta = LINK_LIFETIME) -> str:
        """The token of a new link for ``user``; the user's earlier links end with it."""
        token = secrets.token_urlsafe(32)
        cls.objects.filter(user=user).delete()
        cls.objects.create(user=user, token_hash=hashed(token), expires_at=timezone.now() + lifetime)
        return token

    @classmethod
    def redeem(cls, token: str) -> User | None:
        """The user whom ``token`` lets in, if it is known, unused and in time. It is used up by this call."""
        now = timezone.now()
        link = cls.objects.filter(token_hash=hashed(token))
        if not link.filter(used_at=None, expires_at__gt=now, user__is_active=True).update(used_at=now):
            return None
        return link.get().user


class SignInTry(models.Model):
    """A password that was tried for a name, from an address, in the last quarter of an hour; see `throttle`."""

    name = models.CharField(max_length=150)
    address = models.GenericIPAddressField(null=True)
    at = models.DateTimeField(db_index=True)

    class Meta:
        indexes = (
            models.Index(fields=("name", "at"), name="sign_in_try_for_name"),
            models.Index(fields=("address", "at"), name="sign_in_try_from_address"),
        )

    def __str__(self) -> str:
        return f"{self.name} from {self.address}, {self.at:%Y-%m-%d %H:%M:%S} UTC"


class Scope(models.TextChoices):
    READ = "read"
    RUN = "run"  # everything that is not reading, as far as its user's role lets it


class Token(models.Model):
    """Lets a program in as its user; see `tokens`. Only a hash of it is kept, and its beginning to know it by."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100, help_text="What it is for.")
    prefix = models.CharField(max_length=20)
    token_hash = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=10, choices=Scope.choices))
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="To the minute.")

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def state(self) -> str:
        """In a word: ``valid``, ``revoked`` or ``expired``."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= timezone.now() else "valid"


class Deed(models.Model):
    """Something that a member did; see `audit`."""

    class Action(models.TextChoices):
        QUEUED = "queued"
        CANCELED = "canceled"
        CHANGED = "changed"
        DELETED = "deleted"
        RESTORED = "brought back"
        INVITED = "invited"
        LET_IN = "gave a new link to"
        MADE_VIEWER = "made a viewer"
        MADE_RUNNER = "made a runner"
        MADE_ADMIN = "made an administrator"
        MADE_TOKEN = "made the token"
        REVOKED_TOKEN = "revoked the token"
        SHUT_OUT = "shut out"
        TAKEN_BACK = "took back"

    at = models.DateTimeField(auto_now_add=True)
    member = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="deeds")
    name = models.CharField(max_length=150, help_text="The member's, which stays when the member goes.")
    action = models.CharField(max_length=30, choices=Action.choices)
    subject = models.CharField(max_length=300, help_text="What it was done to, as it was called then.")
    address = models.CharField(max_length=200, blank=True, help_text="Of its page, where it has one.")

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.name} {self.action} {self.subject}"


def hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
