"""``/healthz``: can this web process reach what it needs? For load balancers, and for `up` while it starts."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from kombu.exceptions import OperationalError

from webapp.celery import app

PATIENCE_S = 2.0


@require_safe
@never_cache
@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """200 with ``{"status": "ok", ...}``, or 503 where a part is out of reach, each part with its reason."""
    parts = {"database": _part(_ask_database), "broker": _part(_ask_broker)}
    healthy = all(part["status"] == "ok" for part in parts.values())
    return JsonResponse({"status": "ok" if healthy else "unavailable", **parts}, status=200 if healthy else 503)


def _part(ask: Callable[[], None]) -> dict[str, str]:
    try:
        ask()
    except (DatabaseError, OperationalError, OSError) as error:
        return {"status": "unavailable", "reason": str(error).strip().partition("\n")[0]}
    return {"status": "ok"}


def _ask_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _ask_broker() -> None:
    if not settings.BROKER_URL:
        raise OSError("no broker is configured: set BROKER_URL or start the product with manage.py up")
    with app.connection_for_read(connect_timeout=PATIENCE_S) as broker:
        broker.ensure_connection(max_retries=1, timeout=PATIENCE_S, interval_start=0)
