"""Who works here, the links that let someone in once, and the tries to get in."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils import timezone

LINK_LIFETIME = timedelta(hours=24)


class User(AbstractUser):
    """A member of the team."""


class SignInLink(models.Model):
    """A link that signs one user in, once. Only a hash of its token is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sign_in_links")
    token_hash = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"sign-in link of {self.user}, until {self.expires_at:%Y-%m-%d %H:%M} UTC"

    @classmethod
    def issue(cls, user: User) -> str:
        """The token of a new link for ``user``; the user's earlier links end with it."""
        token = secrets.token_urlsafe(32)
        cls.objects.filter(user=user).delete()
        cls.objects.create(user=user, token_hash=_hash(token), expires_at=timezone.now() + LINK_LIFETIME)
        return token

    @classmethod
    def redeem(cls, token: str) -> User | None:
        """The user whom ``token`` lets in, if it is known, unused and in time. It is used up by this call."""
        now = timezone.now()
        link = cls.objects.filter(token_hash=_hash(token))
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


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
