"""Importing a trace file: read it once, keep it once."""

from __future__ import annotations

import hashlib
from array import array
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from django.db import IntegrityError, transaction
from django.utils.text import slugify

from bench_worker.spec import Library
from bench_worker.workload.generators import GENERATORS
from bench_worker.workload.requests import AZURE_HEADER, TraceError, read_trace, write_trace
from webapp.traces.models import Trace

if TYPE_CHECKING:
    from webapp.accounts.models import User

MAX_REQUESTS = 2_000_000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def import_trace(path: Path, name: str | None = None, by: User | None = None) -> tuple[Trace, bool]:
    """Keep the trace file under ``name`` (by default the file's own, as a slug).

    Returns the entry and whether it is new: the same requests again give the entry that already holds them, whatever
    their file was called. Raises `TraceError`, one sentence, for a file that is no trace and a name that is not free.
    """
    name = _allowed_name(name if name is not None else slugify(path.stem), path)
    arrival_s, prompt_tokens, output_tokens = array("d"), array("q"), array("q")
    for request in read_trace(path):
        if len(arrival_s) == MAX_REQUESTS:
            raise TraceError(f"{path.name}: holds more than {MAX_REQUESTS:,} requests, the most an entry may have")
        arrival_s.append(request.arrival_s)
        prompt_tokens.append(request.prompt_tokens)
        output_tokens.append(request.output_tokens)

    content = hashlib.sha256(b"".join(column.tobytes() for column in (arrival_s, prompt_tokens, output_tokens)))
    try:
        with transaction.atomic():
            trace = Trace.objects.create(
                name=name,
                content_hash=content.hexdigest(),
                source_file=path.name[:255],
                format=_format(path),
                num_requests=len(arrival_s),
                total_prompt_tokens=sum(prompt_tokens),
                total_output_tokens=sum(output_tokens),
                prompt_quantiles=_quantiles(prompt_tokens),
                output_quantiles=_quantiles(output_tokens),
                created_by=by,
                arrival_s=arrival_s.tolist(),
                prompt_tokens=prompt_tokens.tolist(),
                output_tokens=output_tokens.tolist(),
            )
    except IntegrityError:
        known = Trace.objects.described().filter(content_hash=content.hexdigest()).first()
        if known is not None:
            return known, False
        raise TraceError(f"name: {name!r} is taken by another trace; give this one another name") from None
    return trace, True


def traces_library() -> Library:
    """What an experiment may name here: the built-in traces and the imported ones, no file paths."""
    return Library(traces=frozenset(Trace.objects.values_list("name", flat=True)))


def trace_files(name: str, directory: Path, count: int | None = None) -> dict[str, Path]:
    """The first ``count`` requests (all without it) of the imported trace ``name``, written into ``directory`` as the
    measuring program reads them; empty where no imported trace has that name."""
    trace = Trace.objects.filter(name=name).first()
    if trace is None:
        return {}
    file = directory / f"{trace.name}.csv"
    write_trace(file, islice(trace.requests(), count))
    return {trace.name: file}


def _allowed_name(name: str, path: Path) -> str:
    if not name or name != slugify(name) or len(name) > 100:
        raise TraceError(
            f"name: {name!r} is not allowed; it must have 1 to 100 lower-case letters, digits, hyphens or underscores"
        )
    if name in GENERATORS:
        raise TraceError(f"name: {name!r} is a built-in trace; give {path.name} another name")
    return name


def _format(path: Path) -> str:
    with path.open(encoding="utf-8-sig") as file:
        first = next(line.strip() for line in file if line.strip())
    if first.startswith("{"):
        return "Mooncake JSON lines"
    return "Azure CSV" if AZURE_HEADER[0] in first else "CSV"


def _quantiles(values: array[int]) -> dict[str, float]:
    """Linear interpolation between order statistics, as everywhere in this project."""
    points = np.quantile(np.frombuffer(values, dtype=np.int64), list(QUANTILES.values()))
    return dict(zip(QUANTILES, points.tolist(), strict=True))
