"""The pages of the main room. Each reads, calls one function and renders; fragments are parts of the same templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django.views.decorators.vary import vary_on_headers
from django_htmx.http import reswap

from bench_worker import devices, spec
from bench_worker.strategies import NON_CAUSAL, STRATEGIES
from webapp.accounts.models import Role
from webapp.accounts.roles import member, needs
from webapp.experiments import (
    backends,
    export,
    fields,
    home_page,
    kernel_page,
    machine_page,
    machines,
    memory,
    page,
    queue,
    run_page,
    sizing,
)  # fmt: skip
from webapp.experiments.filters import ExperimentFilter
from webapp.experiments.forms import DocumentForm, ExperimentForm
from webapp.experiments.kernels_form import KernelsForm
from webapp.experiments.models import Experiment, Kind, Machine
from webapp.experiments.thinning import Thinned
from webapp.numbers import number_in
from webapp.traces.store import traces_library

PER_PAGE = 25
#: What the head of an experiment's page doesn't show.
BELOW_HEAD = ("document", "plan", "result", "last_output", "notes")
#: Of a page whose part is served under the same address: going back must not show the part alone.
part_of_its_page = vary_on_headers("HX-Request")


@require_safe
@part_of_its_page
def home(request: HttpRequest) -> HttpResponse:
    """What is happening: running, waiting, recently ended. The page asks for its ``now`` part again as time passes."""
    return render(request, _or_part(request, "experiments/home.html", "now"), home_page.home())


@require_safe
@part_of_its_page
def experiment_list(request: HttpRequest) -> HttpResponse:
    """Every experiment that passes the filters in the address; with a filter that makes no sense, none."""
    chosen = ExperimentFilter(request.GET, queryset=Experiment.objects.listed())
    found = chosen.qs if chosen.is_valid() else Experiment.objects.none()
    context = {
        "filter": chosen,
        "is_filtered": any(request.GET.get(name) for name in chosen.filters),
        "rows": Paginator(found, PER_PAGE).get_page(request.GET.get("page")),
    }
    return render(request, _or_part(request, "experiments/list.html", "rows"), context)


@needs(Role.RUNNER)
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Ask for an experiment: ``?as=json`` takes the document itself, ``?from=ID`` starts from another experiment, and
    ``?model=…`` sets that field of the form."""
    as_json = request.GET.get("as") == "json"
    library = traces_library()
    source = _source(request)
    usual = source.pool if source else settings.MOESCOPE_POOL
    where: dict[str, Any] = {"pools": machines.pools(), "pool": request.POST.get("pool", usual)}
    form: DocumentForm | ExperimentForm
    if request.method != "POST":
        given = {ask.name: request.GET[ask.name] for ask in fields.ASKS if ask.name in request.GET}
        form = _blank(source, library, as_json, given, where)
    elif "switch" in request.POST:
        form = _switched(request, library, as_json, where)
    elif "compare" in request.POST and not as_json:
        form = ExperimentForm.comparing_strategies(request.POST.dict(), library, **where)
    else:
        form = _kind(as_json)(request.POST, library=library, **where)
        if form.is_valid() and form.passes(memory.check):
            return redirect(queue.enqueue(form.experiment, author=member(request), pool=form.pool_name))
    context = {
        "form": form,
        "as_json": isinstance(form, DocumentForm),
        "source": source,
        **_outlook(form),
        "strategies": STRATEGIES,
        "non_causal": NON_CAUSAL,
        **_missing(form),
    }
    return render(request, "experiments/new.html", context, status=422 if form.is_bound and form.errors else 200)


@require_POST
def plan(request: HttpRequest) -> HttpResponse:
    """What the experiment would take as the form stands now; nothing is queued."""
    as_json = request.GET.get("as") == "json"
    form = _kind(as_json)(request.POST, library=traces_library(), pools=machines.pools())
    context = {"form": form, "as_json": as_json, **_outlook(form), **_missing(form)}
    return render(request, "experiments/new.html#plan", context)


@require_http_methods(["GET", "HEAD", "POST"])
@part_of_its_page
def capacity(request: HttpRequest) -> HttpResponse:
    """Will it fit: no run is needed. The address holds the question, but for a config.json, ``?as=config``, which is
    posted."""
    if request.GET.get("as") != "config":
        return _sized(request, sizing.SizingForm(request.GET.dict()))
    with TemporaryDirectory(prefix="moescope-config-") as folder:
        form = sizing.OwnModelForm(request.POST.dict(), Path(folder), asks=request.method == "POST")
        return _sized(request, form)


def _sized(request: HttpRequest, form: sizing.SizingForm) -> HttpResponse:
    own = isinstance(form, sizing.OwnModelForm)
    context = {"form": form, "own": own, "answer": form.answer(), "most": devices.MOST}
    return render(request, _or_part(request, "experiments/capacity.html", "answer"), context)


@require_safe
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "experiments/detail.html", _context(request, visible(pk)))


@require_safe
def live(request: HttpRequest, pk: int) -> HttpResponse:
    """The part of the page that changes until the experiment has ended; only its head while the rest is as it was when
    it was last sent (``?shown=`` its stamp), for most of a page costs the machine that is being measured too much."""
    row = visible(pk, without=BELOW_HEAD)
    if not request.htmx:  # type: ignore[attr-defined]
        return redirect(row)
    if request.GET.get("shown") != page.stamp(row):
        return render(request, "experiments/detail.html#live", _context(request, visible(pk)))
    return reswap(render(request, "experiments/detail.html#head", page.head(row)), "none")


@require_safe
def run(request: HttpRequest, pk: int, position: int) -> HttpResponse:
    """Every request and every step of one run, sorted and paged as the address says."""
    return render(request, "experiments/run.html", run_page.context(visible(pk), position, request.GET))


@require_safe
def machine_list(request: HttpRequest) -> HttpResponse:
    return render(request, "experiments/machines.html", machine_page.machine_list())


@require_http_methods(["GET", "HEAD", "POST"])
def machine(request: HttpRequest, pk: int) -> HttpResponse:
    """One state of one machine; its other states lead to pages of their own. What is posted to it asks a worker of its
    pool to measure the expert kernels."""
    chosen = get_object_or_404(Machine, pk=pk)
    kernels = kernel_page.of_machine(chosen, request.GET.get("table", ""), request.GET.get("before", ""))
    form = KernelsForm(request.POST) if request.method == "POST" else KernelsForm.like(kernels["tables"])
    if form.is_valid() and form.fits(chosen.pool):
        return redirect(queue.enqueue_kernels(form.asked, author=member(request), pool=chosen.pool))
    context = machine_page.machine(chosen) | kernels | {"form": form}
    return render(request, "experiments/machine.html", context, status=422 if form.errors else 200)


@require_safe
def result(request: HttpRequest, pk: int) -> HttpResponse:
    """The result file, or the table of kernels, as the worker wrote it."""
    try:
        measured = export.result_of(visible(pk))
    except Thinned as thinned:
        return refused(str(thinned), 410)
    if measured is None:
        raise Http404("This experiment has no result.")
    return download(export.as_json(measured), f"result-{pk}.json")


@require_safe
def document(request: HttpRequest, pk: int) -> HttpResponse:
    """The experiment file, which the measuring program reads."""
    row = visible(pk)
    if row.kind != Kind.EXPERIMENT:
        raise Http404("The measuring program reads no file for this.")
    return download(export.experiment_json(row), f"experiment-{pk}.json")


def visible(pk: int, without: Sequence[str] = ()) -> Experiment:
    """The experiment, unless it was deleted or never was; its fields ``without`` are read where they are asked for.
    Raises `Http404`."""
    return get_object_or_404(Experiment.objects.visible().select_related("author", "machine").defer(*without), pk=pk)


def _or_part(request: HttpRequest, template: str, part: str) -> str:
    return f"{template}#{part}" if request.htmx else template  # type: ignore[attr-defined]


def _context(request: HttpRequest, row: Experiment) -> dict[str, object]:
    shown = {name: request.GET[name] for name in page.Shown._fields if name in request.GET}
    return page.detail(row, page.Shown(**shown))


def _outlook(form: DocumentForm | ExperimentForm) -> dict[str, Any]:
    """What the experiment would take, and where the capacity page says more about its deployment."""
    found = form.outlook(memory.outlook)
    query = found and sizing.query_of(found.deployed, found.deployment.tokens_per_sequence)
    return {"outlook": found, "capacity_query": query}


def _kind(as_json: bool) -> type[DocumentForm] | type[ExperimentForm]:
    return DocumentForm if as_json else ExperimentForm


def _missing(form: DocumentForm | ExperimentForm) -> dict[str, Any]:
    """The expert kernels that the form offers and the machines of its pool can't run."""
    if isinstance(form, DocumentForm):
        return {}
    known = machines.of_pool(form.pool_name or settings.MOESCOPE_POOL)
    reports = backends.reports([machine.details for machine in known]) or [{}]
    if (spec := form.spec) is not None:
        reports = [backends.for_spec(report, spec) for report in reports]
    experts, fusion = (str(form[name].value()) for name in ("experts", "fusion"))
    return {"missing": backends.missing(reports, experts, fusion), "num_machines": len(known)}


def _source(request: HttpRequest) -> Experiment | None:
    """The experiment to start from, ``?from=ID``."""
    number = number_in(request.GET.get("from", ""))
    row = None if number is None else visible(number)
    if row is not None and row.kind != Kind.EXPERIMENT:
        raise Http404("No experiment can start from this.")
    return row


def _blank(
    source: Experiment | None, library: spec.Library, as_json: bool, given: dict[str, str], where: dict[str, Any]
) -> DocumentForm | ExperimentForm:
    """A form with the usual values but for ``given``, or with those of ``source``: as JSON where the fields can't say
    all of it."""
    if source is not None:
        as_document = DocumentForm.showing(source.document, library, **where)
        return as_document if as_json else ExperimentForm.showing(source.document, library, **where) or as_document
    if as_json:
        return DocumentForm.showing(ExperimentForm(library=library, initial=given).document, library, **where)
    return ExperimentForm(library=library, initial=given, **where)


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


def refused(sentence: str, status: int = 422) -> HttpResponse:
    """Why there is no file, for who follows a link to one."""
    return HttpResponse(f"{sentence}\n", status=status, content_type="text/plain; charset=utf-8")


def download(data: bytes, name: str, kind: str = "application/json") -> HttpResponse:
    """``data`` as a file called ``name``."""
    return HttpResponse(data, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
