"""Idempotency keys: a client that got no answer sends its POST again, and it is done once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from rest_framework.request import Request

from webapp.accounts.roles import member
from webapp.api.models import Once
from webapp.api.problems import Refused
from webapp.experiments.models import Experiment

HEADER = "Idempotency-Key"
KEPT_FOR = timedelta(days=1)


def once(request: Request, make: Callable[[], Experiment]) -> tuple[Experiment, bool]:
    """What ``make`` gives, and True; or what it gave to the same user's earlier request with this key, and False.

    What ``make`` raises leaves the key unused. Two requests at once: the later one waits for the earlier. Raises
    `Refused` where the key can't be one, or came with another request.
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
        known = mine.select_for_update(of=("self",)).select_related("experiment").get()
        if known.asked_hash != asked_hash:
            raise Refused(HEADER, f"{key!r} came with another request before; take a new key for a new request")
        if known.experiment is not None:
            return known.experiment, False
        row = make()
        mine.update(experiment=row)
    return row, True
