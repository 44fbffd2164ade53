"""What is missing before anything is tried: each with an id, and a hint that says what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register, run_checks
from django.core.management.base import SystemCheckError

from bench_worker.errors import SpecError
from webapp.ui import finders

#: Tag of what must hold before pages are served; other programs do without.
SERVING = "serving"
START = "Start the product with `make run`, or name a running server in the environment:"


@register(Tags.database)
def servers_are_named(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if not settings.DATABASE_URL:
        hint = f"{START} DATABASE_URL=postgresql://user:password@host/database"
        found.append(Error(f"No database: nothing runs on {settings.MOESCOPE_DATA}.", hint=hint, id="moescope.E001"))
    elif not settings.DATABASE_URL.startswith(("postgres://", "postgresql://")):
        hint = "Moescope keeps arrays and JSON in Postgres; no other database can hold them."
        found.append(Error("DATABASE_URL is not the address of a Postgres.", hint=hint, id="moescope.E002"))
    if not settings.BROKER_URL:
        hint = f"{START} BROKER_URL=redis://host:6379/0"
        found.append(Error(f"No broker: nothing runs on {settings.MOESCOPE_DATA}.", hint=hint, id="moescope.E003"))
    return found


@register("moescope")
def pool_is_a_name(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if re.fullmatch(r"[\w.-]{1,64}", settings.MOESCOPE_POOL, re.ASCII):
        return []
    hint = "Use letters, digits, dots, dashes and underscores, at most 64; it is the name of a queue."
    return [Error(f"MOESCOPE_POOL can't be {settings.MOESCOPE_POOL!r}.", hint=hint, id="moescope.E004")]


@register("moescope")
def labels_are_labels(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    from webapp.experiments.labels import parse  # a room, which this file stands above

    try:
        parse(settings.MOESCOPE_LABELS, "MOESCOPE_LABELS")
    except SpecError as error:
        return [Error(str(error), hint="Write key=value,key=value, as in image=2026.3,site=lab.", id="moescope.E008")]
    return []


@register("moescope")
def alerts_can_be_sent(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    from webapp.history.webhooks import Refused, checked  # a room, which this file stands above

    found: list[CheckMessage] = []
    for place, url in enumerate(settings.MOESCOPE_ALERT_WEBHOOKS, start=1):  # the address itself is a secret
        try:
            checked(url, settings.MOESCOPE_ALERT_HOSTS)
        except Refused as refused:
            hint = "List its host: MOESCOPE_ALERT_HOSTS=hooks.example.org,hooks.slack.com"
            found.append(Error(f"MOESCOPE_ALERT_WEBHOOKS, number {place}: {refused}", hint=hint, id="moescope.E009"))
    if settings.MOESCOPE_ALERT_MAIL and not settings.EMAIL_URL:
        hint = "Name one: EMAIL_URL=smtp://user:password@host:587?tls=True"
        found.append(Error("MOESCOPE_ALERT_MAIL needs a mail server.", hint=hint, id="moescope.E010"))
    return found


@register(SERVING, deploy=True)
def key_is_kept(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if not settings.SECRET_KEY.startswith(settings.PASSING_KEY):
        return []
    hint = "Set SECRET_KEY to a long random text, the same for every web process: `openssl rand -hex 32` makes one."
    message = "No SECRET_KEY: every start would sign everyone out."
    return [Error(message, hint=hint, id="moescope.E005")]


@register(Tags.security, deploy=True)
def host_is_named(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.ALLOWED_HOSTS != settings.LOCAL_HOSTS:
        return []
    hint = "Set ALLOWED_HOSTS to the names that browsers use, separated by commas: ALLOWED_HOSTS=moescope.example.org"
    message = "ALLOWED_HOSTS is not set: requests from other machines are refused."
    return [Error(message, hint=hint, id="moescope.E006")]


@register(Tags.security, deploy=True)
def pages_come_by_https(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.MOESCOPE_HTTPS:
        return []
    hint = "Set MOESCOPE_HTTPS=true once a proxy serves https; it settles what Django's own warnings ask for."
    return [Warning("Passwords and pages travel in the clear.", hint=hint, id="moescope.W002")]


@register("moescope")
def memory_is_an_amount(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.MOESCOPE_MEMORY_GB >= 0:
        return []
    hint = "Give the memory of a measurement in GB, such as 16; 0 lets it take what is free."
    return [Error(f"MOESCOPE_MEMORY_GB can't be {settings.MOESCOPE_MEMORY_GB:g}.", hint=hint, id="moescope.E007")]


@register("moescope")
def steps_are_kept_for_days(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.MOESCOPE_KEEP_STEPS_DAYS >= 0:
        return []
    hint = "Give a number of days, such as 180; 0 keeps every step forever."
    message = f"MOESCOPE_KEEP_STEPS_DAYS can't be {settings.MOESCOPE_KEEP_STEPS_DAYS}."
    return [Error(message, hint=hint, id="moescope.E011")]


@register(Tags.staticfiles)
def npm_packages_are_there(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    absent = finders.missing()
    if not absent:
        return []
    names = ", ".join(file.name for file in absent)
    return [Warning(f"Pages lack {names}.", hint="Run `make setup`: it installs the npm packages.", id="moescope.W001")]


def refuse_to_serve_badly() -> None:
    """Raise `SystemCheckError` where something is missing without which pages can't be served well."""
    found = run_checks(tags=[SERVING], include_deployment_checks=True)
    if serious := [str(message) for message in found if message.is_serious()]:
        raise SystemCheckError("\n".join(serious))
