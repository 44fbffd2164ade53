"""What the home page says about the nights; home itself stands in a room below this one."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils import timezone

from webapp.history import series_page, watchdog

register = template.Library()


@register.inclusion_tag("history/_last_night.html")
def last_night() -> dict[str, Any]:
    """One line: how the latest nights went, and what is wrong with them."""
    lines = watchdog.lines(timezone.now())
    return (series_page.headline() if lines else {}) | {
        "num_schedules": sum(line.schedule.is_on for line in lines),
        "troubled": [line for line in lines if line.concerns],
    }
