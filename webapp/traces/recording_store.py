"""Importing a recording of expert load. The measuring program reads the files, in a process of its own with limits:
they may be large, hostile, or need torch (docs/adr/0019).
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from django.db import IntegrityError, transaction
from django.utils.text import slugify

from bench_worker import models
from bench_worker.workload import recordings as loads
from bench_worker.workload.recordings import RecordingError
from webapp import guard
from webapp.guard import End, Limits
from webapp.traces.models import COUNT, Recording
from webapp.traces.store import refused_name
from webapp.ui.formatting import size

if TYPE_CHECKING:
    from webapp.accounts.models import User

#: What reading one recording may take: enough for every file that is read at all.
LIMITS = Limits(seconds=120.0, bytes=2_000_000_000)
#: Bytes of a recording in its compact form.
MAX_BYTES = 64_000_000
#: Several at once could take several times the memory.
_one_at_a_time = threading.Lock()


def import_recording(
    files: Sequence[Path], name: str | None = None, by: User | None = None, num_experts: int | None = None
) -> tuple[Recording, bool]:
    """Keep the recording in ``files`` (one, or SGLang's dumps of all ranks) under ``name``, by default a file's own.

    ``#`` and the name of a domain may follow the path of a file with several. ``num_experts``: of the model, where the
    file leaves that to be guessed. Returns the entry and whether it is new: the same load again gives the entry that
    already holds it. Raises `RecordingError`, one sentence, for files that are none and a name that is not free.
    """
    if name is None:
        name = slugify("-".join(Path(part).stem for part in files[0].name.split("#")))
    if refused := refused_name(name):
        raise RecordingError(refused)
    with TemporaryDirectory(prefix="moescope-import-") as directory:
        out = Path(directory) / "recording.npz"
        found = _read(files, out, num_experts)
        if out.stat().st_size > MAX_BYTES:
            raise RecordingError(
                f"{files[0].name}: takes {size(out.stat().st_size)}; an entry may have at most {size(MAX_BYTES)}"
            )
        content = out.read_bytes()
    same = Recording.objects.described().filter(content_hash=found["sha256"])
    if known := same.first():
        return known, False
    try:
        with transaction.atomic():
            recording = Recording.objects.create(
                name=name,
                content_hash=found["sha256"],
                source_file=files[0].name[:255],
                layers=found["layers"],
                num_experts=found["experts"],
                top_k=found["top_k"],
                num_tokens=found["tokens"],
                num_sequences=found["sequences"],
                dropped_rows=found["dropped_rows"],
                imbalance=found["imbalance"],
                created_by=by,
                counts=np.array(found["counts"], COUNT).tobytes(),
                content=content,
            )
    except IntegrityError:
        if known := same.first():  # another import was faster
            return known, False
        raise RecordingError(f"name: {name!r} is taken by another recording; give this one another name") from None
    return recording, True


def loads_of(names: Iterable[str | None]) -> dict[str, loads.Recording]:
    """The counted loads of the recordings called ``names``, those that there are."""
    asked = {name for name in names if name is not None}
    entries = Recording.objects.filter(name__in=asked).defer("content") if asked else ()
    return {entry.name: entry.load() for entry in entries}


def recording_files(entries: Iterable[Recording], directory: Path) -> dict[str, Path]:
    """``entries`` written into ``directory`` as the measuring program reads them, by name."""
    files = {entry.name: directory / f"{entry.name}.npz" for entry in entries}
    for entry in entries:
        files[entry.name].write_bytes(entry.content)
    return files


def models_for(entry: Recording) -> list[str]:
    """Presets whose load it can be."""
    load = entry.load()
    return [name for name, model in models.presets().items() if not load.misfit(model.experts, model.top_k, name)]


def _read(files: Sequence[Path], out: Path, num_experts: int | None) -> dict[str, Any]:
    """Have the measuring program write ``out``; what it says about it."""
    experts = [] if num_experts is None else [f"--experts={num_experts}"]
    program = [sys.executable, "-m", "bench_worker", "recording", "--json", f"--out={out}", *experts]
    with _one_at_a_time:
        end, said = guard.hold([*program, *map(str, files)], LIMITS)
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if end.code == 0 and not end.stopped:
        found: dict[str, Any] = next(event for event in events if "sha256" in event)
        return found
    told = next((event["message"] for event in events if event.get("event") == "error"), None)
    raise RecordingError(_why(files[0].name, end, told and told.removeprefix("recording: "), said))


def _why(name: str, end: End, told: str | None, said: str) -> str:
    if end.stopped == "memory":
        return f"{name}: takes more than {size(LIMITS.bytes)} of memory to read, the most that an import may take"
    if end.stopped == "time":
        return f"{name}: takes more than {LIMITS.seconds:.0f} s to read, the most that an import may take"
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    return told or f"{name}: the program that reads recordings failed: {last}"
