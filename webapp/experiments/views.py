"""The pages of the main room. Each reads, calls one function and renders; fragments are parts of the same templates."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from bench_worker import spec
from webapp.accounts.models import User
from webapp.experiments import export, machines, memory, page, queue
from webapp.experiments.forms import DocumentForm, ExperimentForm
from webapp.experiments.models import Experiment
from webapp.traces.store import traces_library

PER_PAGE = 25


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """What is happening: running, waiting, recently ended. The page asks for its ``now`` part again as time passes."""
    template = "experiments/home.html#now" if request.htmx else "experiments/home.html"  # type: ignore[attr-defined]
    return render(request, template, page.home())


@require_safe
def experiment_list(request: HttpRequest) -> HttpResponse:
    rows = Paginator(Experiment.objects.listed(), PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "experiments/list.html", {"rows": rows})


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Ask for an experiment: ``?as=json`` takes the document itself, ``?from=ID`` starts from another experiment."""
    as_json = request.GET.get("as") == "json"
    library = traces_library()
    where = {"pools": machines.pools(), "pool": request.POST.get("pool", settings.MOESCOPE_POOL)}
    form: DocumentForm | ExperimentForm
    if request.method != "POST":
        form = _blank(request, library, as_json, where)
    elif "switch" in request.POST:
        form = _switched(request, library, as_json, where)
    else:
        form = (DocumentForm if as_json else ExperimentForm)(request.POST, library=library, **where)
        if form.is_valid() and form.passes(memory.check):
            author = request.user
            assert isinstance(author, User)
            return redirect(queue.enqueue(form.experiment, author=author, pool=form.pool_name))
    status = 422 if form.is_bound and form.errors else 200
    context = {"form": form, "as_json": isinstance(form, DocumentForm), "outlook": form.outlook(memory.outlook)}
    return render(request, "experiments/new.html", context, status=status)


@require_POST
def plan(request: HttpRequest) -> HttpResponse:
    """What the experiment would take as the form stands now; nothing is queued."""
    form = ExperimentForm(request.POST, library=traces_library(), pools=machines.pools())
    return render(request, "experiments/new.html#plan", {"form": form, "outlook": form.outlook(memory.outlook)})


@require_safe
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "experiments/detail.html", _context(request, pk))


@require_safe
def live(request: HttpRequest, pk: int) -> HttpResponse:
    """The part of the page that changes until the experiment has ended."""
    return render(request, "experiments/detail.html#live", _context(request, pk))


@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Experiment, pk=pk)
    if not queue.request_cancel(pk):
        messages.info(request, "It had ended before it could be canceled.")
    return redirect(row)


@require_safe
def result(request: HttpRequest, pk: int) -> HttpResponse:
    """The result file, as the worker wrote it."""
    measured = export.result_of(get_object_or_404(Experiment, pk=pk))
    if measured is None:
        raise Http404("This experiment has no result.")
    return _download(export.as_json(measured), f"result-{pk}.json")


@require_safe
def document(request: HttpRequest, pk: int) -> HttpResponse:
    """The experiment file, which the measuring program reads."""
    return _download(export.experiment_json(get_object_or_404(Experiment, pk=pk)), f"experiment-{pk}.json")


def _context(request: HttpRequest, pk: int) -> dict[str, object]:
    row = get_object_or_404(Experiment.objects.select_related("author", "machine"), pk=pk)
    return page.detail(row, request.GET.get("run", ""))


def _blank(
    request: HttpRequest, library: spec.Library, as_json: bool, where: dict[str, Any]
) -> DocumentForm | ExperimentForm:
    """An empty form, or one filled from the experiment ``?from=ID``: as JSON where the fields can't say all of it."""
    source = request.GET.get("from", "")
    if source.isdecimal():
        row = get_object_or_404(Experiment, pk=int(source))
        where |= {"pool": row.pool}
        as_document = DocumentForm.showing(row.document, library, **where)
        return as_document if as_json else ExperimentForm.showing(row.document, library, **where) or as_document
    if as_json:
        return DocumentForm.showing(ExperimentForm(library=library).document, library, **where)
    return ExperimentForm(library=library, **where)


def _switched(
    request: HttpRequest, library: spec.Library, as_json: bool, where: dict[str, Any]
) -> DocumentForm | ExperimentForm:
    """The other form with the same content; the one that was posted, with its errors, where that can't be done."""
    if not as_json:
        return DocumentForm.showing(ExperimentForm(request.POST, library=library).document, library, **where)
    posted = DocumentForm(request.POST, library=library, **where)
    if not posted.is_valid():
        return posted
    form = ExperimentForm.showing(posted.experiment.document(), library, **where)
    if form is None:
        posted.add_error("document", "The form has no fields for some of this; queue it from here.")
    return form or posted


def _download(data: bytes, name: str) -> HttpResponse:
    return HttpResponse(
        data, content_type="application/json", headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
