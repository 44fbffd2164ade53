"""Idempotency keys: a client that got no answer sends its POST again, and it is done once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from django.db import transaction
from django.db.models import Model
from django.utils import timezone
from rest_framework.request import Request

from webapp.accounts.roles import member
from webapp.api.models import Once
from webapp.api.problems import Refused

HEADER = "Idempotency-Key"
KEPT_FOR = timedelta(days=1)

M = TypeVar("M", bound=Model)


def once(request: Request, kind: type[M], make: Callable[[], M]) -> tuple[M, bool]:
    """What ``make`` gives, and True; or what it gave to the same user's earlier request with this key, and False.

    ``kind``: of what this address makes. What was made and is gone for good is made anew, and what ``make`` raises
    leaves the key unused. Two requests at once: the later one waits for the earlier. Raises `Refused` where the key
    can't be one, or came with another request.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return make(), True
    if not re.fullmatch(r"[\x21-\x7e]{1,200}", key):
        raise Refused(HEADER, "a key has 1 to 200 visible ASCII characters")
    asked_hash = hashlib.sha256(request.get_full_path().encode() + b"\n" + request.body).hexdigest()
    mine = Once.objects.filter(user=member(request), key=key)
    with transaction.atomic():
        Once.objects.filter(at__lt=timezone.now() - KEPT_FOR).delete()
        new = Once(user=member(request), key=key, asked_hash=asked_hash)
        Once.objects.bulk_create([new], ignore_conflicts=True)
        known = mine.select_for_update().get()
        if known.asked_hash != asked_hash:
            raise Refused(HEADER, f"{key!r} came with another request before; take a new key for a new request")
        earlier = kind._default_manager.filter(pk=known.made).first()
        if earlier is not None:
            return earlier, False
        row = make()
        mine.update(made=row.pk)
    return row, True
