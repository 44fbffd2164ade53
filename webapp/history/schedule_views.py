"""The schedules: a list, a form, and what can be done with each."""

from __future__ import annotations

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from webapp.accounts import audit
from webapp.accounts.models import Deed, Role
from webapp.accounts.roles import member, needs, require_change
from webapp.history import nights, watchdog
from webapp.history.models import Schedule
from webapp.history.schedule_form import ScheduleForm

NIGHTS = 10


@require_safe
def schedule_list(request: HttpRequest) -> HttpResponse:
    return render(request, "history/schedules.html", {"lines": watchdog.lines(timezone.now())})


@needs(Role.RUNNER)
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """``?experiment=ID``: which one is proposed."""
    now = timezone.now()
    if request.method == "POST":
        form = ScheduleForm(request.POST.copy(), now=now)
    else:
        proposed = {"experiment": request.GET.get("experiment"), "owner": member(request)}
        form = ScheduleForm(now=now, initial=proposed)
    return _saved_or_asked(request, form)


@needs(Role.RUNNER)
@require_http_methods(["GET", "HEAD", "POST"])
def change(request: HttpRequest, pk: int) -> HttpResponse:
    schedule = _theirs(request, pk)
    data = request.POST if request.method == "POST" else None
    return _saved_or_asked(request, ScheduleForm(data, now=timezone.now(), schedule=schedule))


@require_safe
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """The latest nights of one schedule."""
    schedule = get_object_or_404(Schedule.objects.select_related("owner"), pk=pk)
    past = schedule.nights.select_related("experiment").defer("experiment__document", "experiment__result")[:NIGHTS]
    line = next(line for line in watchdog.lines(timezone.now()) if line.schedule == schedule)
    return render(request, "history/schedule.html", {"line": line, "schedule": schedule, "nights": past})


@require_POST
def switch(request: HttpRequest, pk: int) -> HttpResponse:
    """On or off, as posted. What was due while it was off does not count."""
    schedule = _theirs(request, pk)
    is_on = request.POST.get("on") == "1"
    since = timezone.now() if is_on and not schedule.is_on else schedule.since
    with transaction.atomic():
        Schedule.objects.filter(pk=pk).update(is_on=is_on, since=since)
        audit.note(member(request), Deed.Action.CHANGED, schedule)
    return redirect(schedule)


@require_POST
def run_now(request: HttpRequest, pk: int) -> HttpResponse:
    schedule = get_object_or_404(Schedule.objects.select_related("owner"), pk=pk)
    night = nights.run_now(schedule, member(request))
    if night is None:
        messages.info(request, f"{schedule.title} was begun in this minute already.")
    elif night.experiment is None:
        messages.error(request, f"{schedule.title} is not queued: {night.left_out}")
    else:
        return redirect(night.experiment)
    return redirect(schedule)


@require_POST
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Its experiments stay."""
    schedule = _theirs(request, pk)
    with transaction.atomic():
        audit.note(member(request), Deed.Action.DELETED, schedule)
        schedule.delete()
    messages.success(request, f"{schedule.title} runs no more. Its experiments stay.")
    return redirect("schedules:list")


def _theirs(request: HttpRequest, pk: int) -> Schedule:
    """The schedule, if it is the member's own or the member an administrator."""
    schedule = get_object_or_404(Schedule.objects.select_related("owner"), pk=pk)
    require_change(member(request), schedule.owner)
    return schedule


def _saved_or_asked(request: HttpRequest, form: ScheduleForm) -> HttpResponse:
    if form.is_valid():
        with transaction.atomic():
            schedule = form.save()
            audit.note(member(request), Deed.Action.CHANGED, schedule)
        return redirect(schedule)
    context = {"form": form, "schedule": form.schedule}
    return render(request, "history/schedule_form.html", context, status=422 if form.errors else 200)
