"""Comparing any runs: finding them, the page, and what comes down from it."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from bench_worker.strategies import NON_CAUSAL
from webapp.experiments import browse, compare_page, compare_read, compare_summary, export_tables, verdicts
from webapp.experiments.compare_page import Page
from webapp.experiments.compare_read import Refused
from webapp.experiments.views import download, part_of_its_page
from webapp.numbers import number_in

#: What of an address belongs to the page, beside its runs.
CHOICES = ("base", "corner")


@require_safe
@part_of_its_page
def compare(request: HttpRequest) -> HttpResponse:
    """The runs that the address names, or a list to pick them from. However they are written, the address becomes the
    shortest: ``?runs=3-9,12``."""
    texts = request.GET.getlist("runs")
    if not any(texts):
        return _browse(request, request.GET.getlist("pick"))
    try:
        numbers = compare_read.parse(texts)
        if numbers and [text for text in texts if text] != [compare_read.written(numbers)]:
            return redirect(address(numbers, request.GET))
        page = asked(request.GET, numbers)
    except Refused as refused:
        return _browse(request, texts, str(refused))
    return render(request, "experiments/compare.html", _context(request, page))


@require_safe
def table(request: HttpRequest) -> HttpResponse:
    """The numbers on the page: as CSV, or as JSON with ``format=json``."""
    try:
        page = asked(request.GET, compare_read.parse(request.GET.getlist("runs")))
    except Refused as refused:
        return HttpResponse(f"{refused}\n", status=422, content_type="text/plain; charset=utf-8")
    rows = list(compare_summary.rows(page))
    if request.GET.get("format") == "json":
        return download(json.dumps(rows, indent=1, ensure_ascii=False).encode(), "compare.json")
    csv = export_tables.written(compare_summary.COLUMNS, rows)
    return download(csv, "compare.csv", "text/csv; charset=utf-8")


def address(numbers: list[int], query: QueryDict | None = None) -> str:
    """Where ``numbers`` are compared, with the choices of ``query``."""
    parts = [f"runs={compare_read.written(numbers)}"]
    kept = QueryDict(mutable=True)
    kept.update({name: str(query[name]) for name in CHOICES if query and query.get(name)})
    return f"{reverse('compare')}?{'&'.join(filter(None, [*parts, kept.urlencode()]))}"


def asked(query: QueryDict, numbers: list[int]) -> Page:
    """The comparison of ``numbers``, with the choices of ``query``. Raises `Refused`."""
    base = query.get("base", "")
    if base and number_in(base) is None:
        raise Refused(f"base: {base[:40]!r} is not the number of a run; it must be one of those that are compared.")
    return compare_page.page(compare_read.measured(numbers), number_in(base), query.get("corner", ""))


def _context(request: HttpRequest, page: Page) -> dict[str, Any]:
    numbers = [run.id for run in page.runs]
    where = request.build_absolute_uri(address(numbers, request.GET))
    return {
        "page": page,
        "runs": compare_read.written(numbers),
        "markdown": compare_summary.markdown(page, "Compare", where),
        "costs": verdicts.COSTS,
        "non_causal": page.non_causal,
        "non_causal_why": NON_CAUSAL,
        "here": where,
    }


def _browse(request: HttpRequest, picked: list[str], problem: str = "") -> HttpResponse:
    """The list to pick from; with ``then=compare``, the comparison of what was picked."""
    try:
        numbers = compare_read.parse(picked)
    except Refused as refused:
        numbers, problem = [], problem or str(refused)
    if request.GET.get("then") == "compare" and len(numbers) > 1:
        return redirect(address(numbers))
    if request.GET.get("then") == "compare":
        problem = "Tick two runs or more to compare them."
    context = browse.found(request.GET, numbers, request.GET.get("page", "")) | {"problem": problem}
    template = "experiments/browse.html#rows" if request.htmx else "experiments/browse.html"  # type: ignore[attr-defined]
    return render(request, template, context, status=422 if problem else 200)
