"""The history: a list of series, a page for each, and what the team says about a change."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from webapp.accounts.roles import member
from webapp.history import deeds, series_page
from webapp.history.models import Change, Series
from webapp.history.triage_form import TriageForm


@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """``?steady=PAGE`` lists the series in which nothing changed, too."""
    return render(request, "history/overview.html", series_page.overview(request.GET.get("steady")))


@require_safe
def last_night(request: HttpRequest) -> HttpResponse:
    """The part of home that tells how the nights went; home asks for it again once a minute."""
    if not request.htmx:  # type: ignore[attr-defined]
        return redirect("home")
    return render(request, "history/_last_night.html", series_page.last_night(timezone.now()))


@require_safe
def series(request: HttpRequest, pk: int) -> HttpResponse:
    chosen = get_object_or_404(Series.objects.select_related("group"), pk=pk)
    return render(request, "history/series.html", series_page.of_series(chosen))


@require_POST
def triage(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what a change is; the other series that changed with it are told the same."""
    change = get_object_or_404(Change.objects.select_related("series"), pk=pk)
    form = TriageForm(request.POST)
    if not form.is_valid():
        return render(request, "history/series.html", series_page.of_series(change.series) | {"form": form}, status=422)
    count = deeds.triage(member(request), change, **form.cleaned_data)
    others = f", with {count - 1} more of the same nights" if count > 1 else ""
    messages.success(request, f"{change.series} is {form.cleaned_data['state']}{others}.")
    return redirect(change.series)
