"""What a member does with an experiment that is there: cancel, run again, describe, delete and bring back."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.views.decorators.http import require_http_methods, require_POST
from django.views.decorators.vary import vary_on_headers

from bench_worker.errors import DoesNotFit, SpecError
from webapp.accounts.roles import member, require_change
from webapp.experiments import deeds, upkeep
from webapp.experiments.forms import DescriptionForm
from webapp.experiments.models import Experiment
from webapp.experiments.views import visible


@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Cancel, and go back to where the button stood: the experiment's page, or home."""
    row = visible(pk)
    if not deeds.cancel(member(request), row):
        messages.info(request, f"{row.title} had ended before it could be canceled.")
    return redirect("home") if request.POST.get("back") == "home" else redirect(row)


@require_POST
def rerun(request: HttpRequest, pk: int) -> HttpResponse:
    """Queue the same document again, as an experiment of its own; what can't run any more is refused."""
    row = visible(pk)
    try:
        return redirect(deeds.queue_again(member(request), row))
    except (SpecError, DoesNotFit) as error:
        return _not_queued(request, row, error)


@require_POST
def try_next(request: HttpRequest, pk: int, place: int) -> HttpResponse:
    """Queue what the verdict advises at ``place``, on the same pool; what can't run there is refused."""
    row = visible(pk)
    try:
        return redirect(deeds.queue_advised(member(request), row, place))
    except (SpecError, DoesNotFit) as error:
        return _not_queued(request, row, error)


@require_http_methods(["GET", "HEAD", "POST"])
@vary_on_headers("HX-Request")
def describe(request: HttpRequest, pk: int) -> HttpResponse:
    """Title, tags and notes: a form in their place on the page, or a page of its own without htmx."""
    row = visible(pk)
    require_change(member(request), row.author)
    as_part = bool(request.htmx)  # type: ignore[attr-defined]
    form = DescriptionForm.showing(row) if request.method != "POST" else DescriptionForm(request.POST)
    if form.is_valid():
        deeds.describe(member(request), row, **form.cleaned_data)
        if not as_part:
            return redirect(row)
        return render(request, "experiments/detail.html#about", {"experiment": visible(pk), "described": True})
    template = f"experiments/describe.html{'#form' if as_part else ''}"
    return render(request, template, {"experiment": row, "form": form}, status=422 if form.errors else 200)


@require_POST
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Hide the experiment; the message on the next page brings it back."""
    row = visible(pk)
    deeds.delete(member(request), row)
    context = {"experiment": row, "days": upkeep.KEPT_FOR.days}
    messages.success(request, render_to_string("experiments/_deleted.html", context, request))
    return redirect("experiments:list")


@require_POST
def restore(request: HttpRequest, pk: int) -> HttpResponse:
    """Undo a deletion. An experiment that was never deleted is just shown."""
    row = get_object_or_404(Experiment.objects.select_related("author"), pk=pk)
    deeds.restore(member(request), row)
    return redirect(row)


def _not_queued(request: HttpRequest, row: Experiment, error: Exception) -> HttpResponse:
    messages.error(request, f"Not queued: {error}.")
    return redirect(row)
