"""What the home page says about the nights; home itself stands in a room below this one."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils import timezone

from webapp.history import series_page

register = template.Library()


@register.inclusion_tag("history/_last_night.html")
def last_night() -> dict[str, Any]:
    """How the latest nights went, and what is wrong with them."""
    return series_page.last_night(timezone.now())
