"""Template filters: the one formatter, under its own names. Built in, so templates need no ``load``."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from django import template
from django.template.context import Context
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from webapp.ui import formatting, pictures

register = template.Library()

for _formatter in (
    formatting.duration_us,
    formatting.duration_ms,
    formatting.size,
    formatting.count,
    formatting.number,
    formatting.percent,
    formatting.signed_percent,
    formatting.change,
    formatting.span,
):
    register.filter(_formatter.__name__, _formatter)


@register.filter
def ago(then: datetime | None) -> str:
    """``2 min ago``, counted to now."""
    return formatting.ago(then, timezone.now())


@register.simple_tag(takes_context=True)
def nav_link(context: Context, address: str, text: str) -> SafeString:
    """A link of the main navigation, marked when the reader is on its page."""
    request = context.get("request")
    here = ' aria-current="page"' if request and request.path == address else ""
    return format_html('<a href="{}"{}>{}</a>', address, mark_safe(here), text)


@register.simple_tag
def heatmap(levels: np.ndarray, label: str) -> SafeString:
    """A heat map, drawn by `webapp.ui.pictures`."""
    return mark_safe(pictures.heatmap(levels, label))


@register.simple_tag
def histogram(bars: Sequence[pictures.Bar], label: str) -> SafeString:
    """A histogram, drawn by `webapp.ui.pictures`."""
    return mark_safe(pictures.histogram(bars, label))


@register.simple_tag
def sparkline(values: Sequence[float], marks: Sequence[int], label: str) -> SafeString:
    """A sparkline, drawn by `webapp.ui.pictures`."""
    return mark_safe(pictures.sparkline(values, marks, label))


@register.simple_tag
def stacked(pieces: Sequence[pictures.Piece], limit: float | None, label: str) -> SafeString:
    """A stacked bar, drawn by `webapp.ui.pictures`."""
    return mark_safe(pictures.stacked(pieces, limit, label))


@register.inclusion_tag("ui/chart.html")
def chart(id: str, config: Mapping[str, Any], label: str, size: str = "") -> dict[str, Any]:
    """A chart from its Chart.js configuration (see `webapp.ui.charts`); ``label`` says in words what it shows.

    ``size`` is ``low``, ``tall`` or empty. The page that uses it loads ``charts.js`` in its ``head`` block.
    """
    return {"id": id, "config": config, "label": label, "size": size}
