"""Importing a trace file: read it once, keep it once. Memory is bounded by what an entry may hold, not by the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from django.db import IntegrityError, transaction
from django.db.models.functions import Substr
from django.utils.text import slugify

from bench_worker.errors import shown
from bench_worker.spec import Library
from bench_worker.workload import Request
from bench_worker.workload.generators import GENERATORS
from bench_worker.workload.requests import AZURE_HEADER, TraceError, read_trace, write_trace
from webapp.traces.models import RECORD, Recording, Trace
from webapp.traces.shape import shape_of

if TYPE_CHECKING:
    from webapp.accounts.models import User

#: 32 MB. An experiment takes 100,000 at most, from the beginning.
MAX_REQUESTS = 2_000_000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
#: Requests that are read from a file before they are packed.
_CHUNK = 10_000


def import_trace(
    path: Path, name: str | None = None, by: User | None = None, first: int | None = None
) -> tuple[Trace, bool]:
    """Keep the trace file under ``name`` (by default the file's own, as a slug), or its ``first`` requests alone.

    Returns the entry and whether it is new: the same requests again give the entry that already holds them, whatever
    their file was called. Raises `TraceError`, one sentence, for a file that is no trace and a name that is not free.
    """
    name = slugify(path.stem) if name is None else name
    if refused := refused_name(name):
        raise TraceError(refused)
    if name in GENERATORS:
        raise TraceError(f"name: {name!r} is a built-in trace; give {path.name} another name")
    packed = _packed(path, first)
    content_hash = hashlib.sha256(packed).hexdigest()
    if known := Trace.objects.described().filter(content_hash=content_hash).first():
        return known, False
    requests = np.frombuffer(packed, RECORD)
    arrival_s, prompt, output = (requests[field] for field in ("arrival_s", "prompt_tokens", "output_tokens"))
    try:
        with transaction.atomic():
            trace = Trace.objects.create(
                name=name,
                content_hash=content_hash,
                source_file=path.name[:255],
                format=_format(path),
                num_requests=len(requests),
                span_s=float(arrival_s[-1] - arrival_s[0]),
                total_prompt_tokens=int(prompt.sum(dtype=np.int64)),
                total_output_tokens=int(output.sum(dtype=np.int64)),
                prompt_quantiles=_quantiles(prompt),
                output_quantiles=_quantiles(output),
                shape=shape_of(requests),
                created_by=by,
                packed=packed,
            )
    except IntegrityError:
        if known := Trace.objects.described().filter(content_hash=content_hash).first():  # another import was faster
            return known, False
        raise TraceError(f"name: {name!r} is taken by another trace; give this one another name") from None
    return trace, True


def traces_library() -> Library:
    """What an experiment may name here: the built-in traces and what was imported, no file paths."""
    return Library(
        traces=frozenset(Trace.objects.values_list("name", flat=True)),
        recordings=frozenset(Recording.objects.values_list("name", flat=True)),
    )


def trace_files(name: str, directory: Path, count: int | None = None) -> dict[str, Path]:
    """The first ``count`` requests (all without it) of the imported trace ``name``, written into ``directory`` as the
    measuring program reads them; empty where no imported trace has that name."""
    length = None if count is None else count * RECORD.itemsize
    packed = Trace.objects.filter(name=name).values_list(Substr("packed", 1, length), flat=True).first()
    if packed is None:
        return {}
    file = directory / f"{name}.csv"
    write_trace(file, map(Request._make, np.frombuffer(packed, RECORD).tolist()))
    return {name: file}


def held_trace(name: str) -> Trace | None:
    """The imported trace of that name, which nobody deletes before the transaction ends; None for another one."""
    if name in GENERATORS:
        return None
    return Trace.objects.select_for_update(no_key=True).only("pk").filter(name=name).first()


def held_recordings(names: Iterable[str | None]) -> list[Recording]:
    """The recordings of those names, which nobody deletes before the transaction ends."""
    asked = {name for name in names if name is not None}
    held = Recording.objects.select_for_update(no_key=True).only("pk").order_by("pk")
    return list(held.filter(name__in=asked)) if asked else []


def delete(entry: Trace | Recording) -> bool:
    """Remove it for good. False: an experiment names it."""
    with transaction.atomic():
        held = type(entry).objects.select_for_update().only("pk").filter(pk=entry.pk)
        if (row := held.first()) is None:
            return True
        if row.experiments.exists():
            return False
        row.delete()
    return True


def refused_name(name: str) -> str | None:
    """Why no entry can have this name; None where one can."""
    if name and name == slugify(name) and len(name) <= 100:
        return None
    return (
        f"name: {shown(name)} is not allowed; it must have 1 to 100 lower-case letters, digits, hyphens or underscores"
    )


def _packed(path: Path, first: int | None) -> bytes:
    """The requests of the file, one `RECORD` each."""
    packed, requests = bytearray(), islice(read_trace(path), first)
    while chunk := list(islice(requests, _CHUNK)):
        packed += np.array(chunk, RECORD).tobytes()
        if len(packed) > MAX_REQUESTS * RECORD.itemsize:
            raise TraceError(
                f"{path.name}: holds more than {MAX_REQUESTS:,} requests, the most that an entry may have; keep its "
                f"first {MAX_REQUESTS:,} alone"
            )
    return bytes(packed)


def _format(path: Path) -> str:
    with path.open(encoding="utf-8-sig") as file:
        first = next(line.strip() for line in file if line.strip())
    if first.startswith("{"):
        return "Mooncake JSON lines"
    return "Azure CSV" if AZURE_HEADER[0] in first else "CSV"


def _quantiles(values: np.ndarray) -> dict[str, float]:
    """Linear interpolation between order statistics, as everywhere in this project."""
    return dict(zip(QUANTILES, np.quantile(values, list(QUANTILES.values())).tolist(), strict=True))
