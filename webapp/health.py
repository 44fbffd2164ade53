"""``/healthz``: can this web process reach what it needs, and does anything measure? For load balancers, for whoever
watches the product, and for `up` while it starts.
"""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from kombu.exceptions import OperationalError

from webapp.celery import app
from webapp.experiments import machines, pulse

PATIENCE_S = 2.0
OK = {"status": "ok"}
UNKNOWN = {"status": "unknown", "reason": "only the database knows"}


@require_safe
@never_cache
@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """Each part with its status and, where that is not ``ok``, the reason.

    503 with ``unavailable`` where the pages can't be served; 200 with ``degraded`` where they can but nothing is
    measured, since another web process would be no better.
    """
    needed = {"database": _part(_ask_database), "broker": _part(_ask_broker)}
    if needed["database"] == OK:
        others = {"workers": _said(_silence_of_workers()), "beat": _said(_silence_of_beat())}
    else:
        others = {"workers": UNKNOWN, "beat": UNKNOWN}
    available = all(part == OK for part in needed.values())
    status = "unavailable" if not available else "ok" if all(part == OK for part in others.values()) else "degraded"
    return JsonResponse({"status": status, **needed, **others}, status=200 if available else 503)


def _part(ask: Callable[[], None]) -> dict[str, str]:
    try:
        ask()
    except (DatabaseError, OperationalError, OSError) as error:
        return {"status": "unavailable", "reason": str(error).strip().partition("\n")[0]}
    return OK


def _said(silence: str | None) -> dict[str, str]:
    return OK if silence is None else {"status": "silent", "reason": silence}


def _silence_of_workers() -> str | None:
    """Why nothing would be measured now; None while a worker lives."""
    known, now = machines.latest(), timezone.now()
    if not known:
        return "no worker has registered yet"
    if all(machines.is_silent(machine, now) for machine in known):
        last = max(machine.last_seen for machine in known)
        return f"none of {len(known)} known to the product has been heard of since {last:%Y-%m-%d %H:%M:%S} UTC"
    return None


def _silence_of_beat() -> str | None:
    """Why lost experiments would not be found; None while beat sends its sweeps."""
    last = pulse.last(pulse.BEAT)
    if last is None:
        return "it has sent no sweep yet"
    if timezone.now() - last > pulse.SILENT_AFTER:
        return f"it has sent no sweep since {last:%Y-%m-%d %H:%M:%S} UTC"
    return None


def _ask_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _ask_broker() -> None:
    if not settings.BROKER_URL:
        raise OSError("no broker is configured: set BROKER_URL or start the product with manage.py up")
    with app.connection_for_read(connect_timeout=PATIENCE_S) as broker:
        broker.ensure_connection(max_retries=1, timeout=PATIENCE_S, interval_start=0)
