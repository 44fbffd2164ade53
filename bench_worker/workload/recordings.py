"""Recorded expert loads: counts a layer and expert, or the experts of every token.

Shapes: ``L`` recorded layers, ``E`` experts, ``T`` tokens, ``k`` experts a token.

Read from the files that others publish, and kept in one compact form, an ``.npz`` without pickled objects:

- ``.npz`` with ``ids`` [T, L, k], and ``seq_lens`` where it has several sequences; or with ``counts`` [L, E];
- JSON with ``counts`` [L][E], or with ``domains``, one such table each by name;
- CSV with a row for each layer and expert: ``layer,expert,count``;
- JSON lines, one a token: its experts ``[L][k]``, alone or as ``{"experts": …, "sequence": …}``.

The dumps of SGLang's expert recorder are read by `bench_worker.workload.sglang_dumps`, which needs torch; this module
does not. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench_worker.errors import shown
from bench_worker.workload import recording_files as files
from bench_worker.workload.recording_files import RecordingError

__all__ = ["Recording", "RecordingError", "from_counts", "from_ids", "read_recording", "write_recording"]

MAX_EXPERTS = 4096
MAX_TOP_K = 256
MAX_LAYERS = 1024
#: A row that stands this often in a row is no text: a profiling pass runs one token again and again.
PROFILING_RUN = 64


@dataclass(frozen=True, eq=False)
class Recording:
    """``counts`` int64 [L, E]: assignments by layer and expert; no layer is without any. ``ids`` [T, L, k], distinct in
    a token, where every token was recorded, sequence after sequence of ``lengths`` int64 tokens. ``top_k`` is None
    where the file doesn't say. ``layers``: the numbers of the layers in their model. ``dropped_rows``: rows of a
    profiling pass that were left out."""

    counts: np.ndarray
    top_k: int | None
    layers: np.ndarray
    ids: np.ndarray | None = None
    lengths: np.ndarray | None = None
    dropped_rows: int = 0

    @property
    def num_experts(self) -> int:
        return self.counts.shape[1]

    @property
    def shares(self) -> np.ndarray:
        """Shares [L, E] of each layer's assignments."""
        return self.counts / self.counts.sum(axis=1, keepdims=True)

    @property
    def content_hash(self) -> str:
        """SHA-256, in hex, of what is replayed: the same whatever file it came in."""
        content = hashlib.sha256(str(self.top_k).encode())
        for values in (self.layers, self.counts, self.ids, self.lengths):
            if values is not None:
                content.update(str(values.shape).encode())
                content.update(values.astype("<i8" if values.ndim < 3 else "<i2").tobytes())
        return content.hexdigest()

    def described(self) -> str:
        """``3 layers of 64 experts``, and how it was recorded."""
        layers = f"{len(self.layers):,} layer{'s' if len(self.layers) > 1 else ''} of {self.num_experts} experts"
        if self.ids is None:
            return f"{layers}, counted"
        return f"{layers}, {len(self.ids):,} tokens one by one"

    def misfit(self, num_experts: int, top_k: int, model: str) -> str | None:
        """Why it can't be the load of a model with ``num_experts`` experts and ``top_k`` a token; None where it can."""
        if self.num_experts != num_experts:
            return f"holds {self.num_experts} experts; {model} has {num_experts}"
        if self.top_k is not None and self.top_k != top_k:
            return f"holds {self.top_k} experts a token; {model} takes {top_k}"
        row, expert = np.unravel_index(self.shares.argmax(), self.counts.shape)
        if (most := self.shares[row, expert]) > (1 + 1e-6) / top_k:
            return (
                f"gives expert {expert} of layer {self.layers[row]} {most:.1%} of the assignments; at {top_k} experts "
                f"a token, as in {model}, none can have more than {1 / top_k:.1%}"
            )
        return None


def from_counts(
    counts: np.ndarray, top_k: int | None = None, layers: np.ndarray | None = None, name: str = "recording"
) -> Recording:
    """A recording of ``counts`` [L, E]. Layers without any count, such as dense ones, are left out.

    Raises `RecordingError` for counts that are none.
    """
    if counts.ndim != 2 or not counts.size or counts.dtype.kind not in "iu":
        raise RecordingError(f"{name}: counts are {_array(counts)}; they must be whole numbers [layers, experts]")
    if counts.shape[0] > MAX_LAYERS or counts.shape[1] > MAX_EXPERTS:
        raise RecordingError(f"{name}: counts are {_array(counts)}; at most {MAX_LAYERS} × {MAX_EXPERTS} are read")
    if top_k is not None and not 1 <= top_k <= min(counts.shape[1], MAX_TOP_K):
        raise RecordingError(f"{name}: top_k {shown(top_k)} is not between 1 and the {counts.shape[1]} experts")
    if counts.max() > files.MAX_COUNT or counts.min() < 0:
        worst = counts.min() if counts.min() < 0 else counts.max()
        raise RecordingError(f"{name}: a count is {worst}; counts go from 0 to {files.MAX_COUNT:,}")
    layers = np.arange(len(counts)) if layers is None else np.asarray(layers)
    if layers.shape != counts.shape[:1] or layers.dtype.kind not in "iu":
        raise RecordingError(f"{name}: layers are {_array(layers)}; there must be one number for each of {len(counts)}")
    some = counts.any(axis=1)
    if not some.any():
        raise RecordingError(f"{name}: all counts are 0")
    return Recording(counts[some].astype(np.int64), top_k, layers[some].astype(np.int64))


def from_ids(
    ids: np.ndarray,
    lengths: np.ndarray | None = None,
    num_experts: int | None = None,
    layers: np.ndarray | None = None,
    name: str = "recording",
) -> Recording:
    """A recording of the experts ``ids`` [T, L, k] of every token, in sequences of ``lengths`` tokens (one by default).

    ``num_experts`` is one above the highest id where it isn't given. A row that repeats itself `PROFILING_RUN` times or
    more is left out and counted. Raises `RecordingError` for ids that are none.
    """
    if ids.ndim != 3 or not ids.size or ids.dtype.kind not in "iu":
        raise RecordingError(
            f"{name}: ids are {_array(ids)}; they must be whole numbers [tokens, layers, experts a token]"
        )
    num_tokens, num_layers, top_k = ids.shape
    if num_layers > MAX_LAYERS or top_k > MAX_TOP_K:
        raise RecordingError(f"{name}: ids are {_array(ids)}; at most {MAX_LAYERS} layers × {MAX_TOP_K} are read")
    lowest, highest = int(ids.min()), int(ids.max())
    experts = highest + 1 if num_experts is None else num_experts
    if lowest < 0 or highest >= min(experts, MAX_EXPERTS):
        allowed = min(experts, MAX_EXPERTS) - 1
        raise RecordingError(f"{name}: an id is {lowest if lowest < 0 else highest}; ids go from 0 to {allowed}")
    ids = ids.astype(np.int16)
    _refuse_doubles(ids, name)
    lengths = np.array([num_tokens]) if lengths is None else np.asarray(lengths)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any() or lengths.sum() != num_tokens:
        raise RecordingError(f"{name}: the sequences' lengths don't sum to the {num_tokens:,} tokens")

    real = ~_profiling(ids)
    if not real.any():
        raise RecordingError(f"{name}: all {num_tokens:,} rows repeat one another, as in a profiling pass")
    sequence = np.repeat(np.arange(len(lengths)), lengths)[real]
    kept = ids[real]
    counts = np.stack([np.bincount(kept[:, layer].ravel(), minlength=experts) for layer in range(num_layers)])
    made = from_counts(counts, top_k, layers, name)
    lengths = np.bincount(sequence, minlength=len(lengths))
    return replace(made, ids=kept, lengths=lengths[lengths > 0], dropped_rows=int(num_tokens - real.sum()))


def _profiling(ids: np.ndarray) -> np.ndarray:
    """bool [T]: rows in a run of `PROFILING_RUN` or more that are the same, whatever the order of their experts."""
    rows = np.sort(ids, axis=2).reshape(len(ids), -1)
    changes = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
    lengths = np.diff(np.concatenate([[0], changes, [len(rows)]]))
    return np.repeat(lengths >= PROFILING_RUN, lengths)


def _refuse_doubles(ids: np.ndarray, name: str) -> None:
    ordered = np.sort(ids, axis=2)
    token, layer, place = np.nonzero(ordered[:, :, 1:] == ordered[:, :, :-1])
    if token.size:
        expert = ordered[token[0], layer[0], place[0]]
        raise RecordingError(f"{name}: token {token[0]} has expert {expert} twice in layer {layer[0]}")


def _array(values: np.ndarray) -> str:
    return f"{values.dtype} {list(values.shape)}"


def read_recording(path: Path, name: str | None = None, *, num_experts: int | None = None) -> Recording:
    """The recording in a file of any of the forms above. ``name``: what errors call it; its file's name by default.

    ``#`` and the name of a domain may follow the path of a file with several. ``num_experts`` overrules what the file
    says or leaves to be guessed. Raises `RecordingError`, one sentence, for every file that is no such recording.
    """
    path, domain = _with_domain(path)
    name = name or path.name
    data = files.read_bytes(path, name)
    if files.is_zip(data):
        found: dict[str, Any] = {key: _scalar(value) for key, value in files.arrays(data, name).items()}
    else:
        document = files.text(data, name)
        if document.lstrip()[0] not in "{[":
            found = files.csv_counts(document, name)
        elif files.starts_a_token(document):
            found = files.token_lines(document, name)
        else:
            found = files.json_counts(files.json_value(document), name, domain)
            domain = None
    if domain is not None:
        raise RecordingError(f"{name}: has no domains, and {shown(domain)} is asked for")
    return _made_of(found, name, num_experts)


def _with_domain(path: Path) -> tuple[Path, str | None]:
    stem, mark, domain = path.name.rpartition("#")
    if not mark or path.exists():
        return path, None
    return path.with_name(stem), domain


def _scalar(value: np.ndarray) -> Any:
    return value.item() if value.ndim == 0 else value


def _made_of(found: dict[str, Any], name: str, num_experts: int | None) -> Recording:
    """A recording of what a file holds."""
    for key in ("num_experts", "top_k", "dropped_rows"):
        value = found.get(key, 0)
        if type(value) is not int or not 0 <= value <= files.MAX_COUNT:
            raise RecordingError(f"{name}: {key} is {shown(value)}; it must be a whole number from 0")
    for key in ("ids", "counts"):
        if key in found and not isinstance(found[key], np.ndarray):
            raise RecordingError(f"{name}: {key} are {shown(found[key])}; they must be an array")
    experts = found.get("num_experts") if num_experts is None else num_experts
    if experts is not None and not 1 <= experts <= MAX_EXPERTS:
        raise RecordingError(f"{name}: {shown(experts)} experts are not allowed; from 1 to {MAX_EXPERTS:,} are read")
    layers = found.get("layers")
    if "ids" in found:
        made = from_ids(found["ids"], found.get("seq_lens"), experts, layers, name)
    elif "counts" in found:
        counts = found["counts"]
        if experts is not None and experts > counts.shape[-1]:  # the last ones were never chosen
            counts = np.pad(counts, [(0, 0)] * (counts.ndim - 1) + [(0, experts - counts.shape[-1])])
        if experts is not None and experts != counts.shape[-1]:
            raise RecordingError(f"{name}: has counts of {counts.shape[-1]} experts, and says {experts}")
        made = from_counts(counts, found.get("top_k"), layers, name)
    else:
        raise RecordingError(f"{name}: holds neither ids nor counts; it has {', '.join(found) or 'nothing'}")
    return replace(made, dropped_rows=made.dropped_rows + found.get("dropped_rows", 0))


def write_recording(path: Path, recording: Recording) -> None:
    """Write ``recording`` in its compact form; `read_recording` gives back the same."""
    held: dict[str, Any] = {"layers": recording.layers, "dropped_rows": recording.dropped_rows}
    if recording.ids is not None:
        width = np.uint8 if recording.num_experts <= 256 else np.int16
        held |= {
            "ids": recording.ids.astype(width),
            "seq_lens": recording.lengths,
            "num_experts": recording.num_experts,
        }
    else:
        held["counts"] = recording.counts
        if recording.top_k is not None:
            held["top_k"] = recording.top_k
    with path.open("wb") as file:  # given a name, numpy would add a suffix
        np.savez_compressed(file, **held)


def recorded_layers(recorded: int, executed: int) -> np.ndarray:
    """The recording's layer int64 [executed] that each executed layer replays, spread over all ``recorded``."""
    return np.arange(executed) * recorded // executed
