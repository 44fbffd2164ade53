"""The schedules: a list, a form, and what can be done with each."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from webapp.accounts.models import Role
from webapp.accounts.roles import member, needs, require_change
from webapp.history import deeds, nights, watchdog
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
    schedule = _found(pk)
    require_change(member(request), schedule.owner)
    data = request.POST if request.method == "POST" else None
    return _saved_or_asked(request, ScheduleForm(data, now=timezone.now(), schedule=schedule))


@require_safe
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """The latest nights of one schedule."""
    schedule, again = _found(pk), "experiment__record__rerun__experiment"
    heavy = (f"{row}__{name}" for row in ("experiment", again) for name in ("document", "result"))
    past = schedule.nights.select_related(again).defer(*heavy)[:NIGHTS]
    line = next(line for line in watchdog.lines(timezone.now()) if line.schedule == schedule)
    return render(request, "history/schedule.html", {"line": line, "schedule": schedule, "nights": past})


@require_POST
def switch(request: HttpRequest, pk: int) -> HttpResponse:
    """On or off, as posted."""
    schedule = _found(pk)
    deeds.switch(member(request), schedule, is_on=request.POST.get("on") == "1")
    return redirect(schedule)


@require_POST
def run_now(request: HttpRequest, pk: int) -> HttpResponse:
    schedule = _found(pk)
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
    schedule = _found(pk)
    deeds.delete(member(request), schedule)
    messages.success(request, f"{schedule.title} runs no more. Its experiments stay.")
    return redirect("schedules:list")


def _found(pk: int) -> Schedule:
    return get_object_or_404(Schedule.objects.select_related("owner"), pk=pk)


def _saved_or_asked(request: HttpRequest, form: ScheduleForm) -> HttpResponse:
    if form.is_valid():
        return redirect(deeds.save(member(request), form))
    context = {"form": form, "schedule": form.schedule}
    return render(request, "history/schedule_form.html", context, status=422 if form.errors else 200)
