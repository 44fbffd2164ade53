"""Slows down whoever tries passwords: so many a quarter of an hour for one name, and from one address.

A try counts before its password is looked at, so many tries at once gain nothing. A one-time link lets its user in all
the while: its token can't be guessed.
"""

from __future__ import annotations

import ipaddress
from datetime import timedelta

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from webapp.accounts.models import SignInTry

WINDOW = timedelta(minutes=15)
#: Tries within `WINDOW` that are let through. Everyone of an office may share an address.
MOST_FOR_NAME, MOST_FROM_ADDRESS = 10, 50
MAX_NAME = 150


def admit(name: str, address: str | None) -> timedelta | None:
    """Count a try to sign in. None lets it through; else how long to wait, and the try does not count."""
    name = name[:MAX_NAME]  # no account has a longer one
    since = timezone.now() - WINDOW
    SignInTry.objects.filter(at__lte=since).delete()
    own = SignInTry.objects.create(name=name, address=address, at=since + WINDOW)
    others = SignInTry.objects.exclude(pk=own.pk).order_by("-at")
    crowds = [others.filter(name=name)[MOST_FOR_NAME - 1 :]]
    if address is not None:
        crowds.append(others.filter(address=address)[MOST_FROM_ADDRESS - 1 :])
    in_the_way = [oldest.at - since for crowd in crowds if (oldest := crowd.first()) is not None]
    if not in_the_way:
        return None
    own.delete()
    return max(in_the_way)


def forget(name: str) -> None:
    """The password was right: the tries before it were its owner's."""
    SignInTry.objects.filter(name=name).delete()


def address_of(request: HttpRequest) -> str | None:
    """Where a request comes from, as the last of our own proxies saw it. None where that can't be told."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
    proxies = settings.MOESCOPE_PROXIES
    told = forwarded[-proxies] if 0 < proxies <= len(forwarded) else request.META.get("REMOTE_ADDR", "")
    try:
        return str(ipaddress.ip_address(told.strip()))
    except ValueError:
        return None
