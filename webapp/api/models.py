"""Requests that a client may send again without their being done again."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Once(models.Model):
    """What came of a POST that carried an ``Idempotency-Key``; see `once`."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    key = models.CharField(max_length=200)
    asked_hash = models.CharField(max_length=64, help_text="SHA-256 of the request's address and body.")
    made = models.BigIntegerField(null=True, help_text="Key of what was made, of the kind that the address makes.")
    at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("user", "key"), name="once_a_key"),)

    def __str__(self) -> str:
        return self.key
