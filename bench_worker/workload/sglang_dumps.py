"""Recordings from the files that SGLang's expert distribution recorder dumps (``expert_distribution_recorder_*.pt``).

Shapes: ``S`` buffered steps, ``L`` layers, ``E`` experts, ``P`` physical experts, ``T`` tokens of a pass.

The forms, as sglang/srt/eplb/expert_distribution.py writes them:

- ``stat`` and ``stat_approx``: ``logical_count`` [S, L, E], already summed over ranks;
- ``per_pass``: ``records`` with ``global_physical_count`` [L, P], one a pass and rank, in one file a rank;
- ``per_token``: ``records`` with ``topk_ids_of_layer`` [L, T, 8] as well, −1 where there is no expert;

the last two with ``last_physical_to_logical_map`` [L, P]. Files are opened with ``torch.load(weights_only=True)``,
which builds tensors and plain containers and runs nothing.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench_worker.errors import shown
from bench_worker.workload.recording_files import MAX_BYTES, RecordingError, read_bytes
from bench_worker.workload.recordings import Recording, from_counts, from_ids

__all__ = ["read_dumps"]

MAX_VALUES = 100_000_000


def read_dumps(paths: Sequence[Path]) -> Recording:
    """One recording of the dumps of all ranks: counts are summed, tokens stand one rank after the other.

    Raises `RecordingError`, one sentence, for a file that is no such dump and for files that don't belong together.
    """
    dumps = [(path.name, _load(path)) for path in paths]
    name = dumps[0][0]
    counted = [dump["logical_count"] for _, dump in dumps if "logical_count" in dump]
    if counted:
        if len(counted) < len(dumps):
            raise RecordingError(f"{name}: counts and records are different recordings; import them one by one")
        return from_counts(_sum([_counts(count, name) for count in counted], name), name=name)
    records = [(name, record, dump) for name, dump in dumps for record in _records(dump, name)]
    if all("topk_ids_of_layer" in record for _, record, _ in records):
        return _per_token(records)
    return from_counts(_sum([_pass_counts(*record) for record in records], name), name=name)


def _load(path: Path) -> dict[str, Any]:
    name = path.name
    data = read_bytes(path, name)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_BYTES:
            raise RecordingError(f"{name}: unpacks to {unpacked:,} bytes; at most {MAX_BYTES:,} are read")
        dump = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise RecordingError(f"{name}: is no whole dump of SGLang's recorder ({_first_line(error)})") from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, AssertionError) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"{name}: is no dump of SGLang's recorder ({_first_line(error)})") from None
    if not isinstance(dump, dict) or not ({"logical_count", "records"} & set(dump)):
        raise RecordingError(f"{name}: is no dump of SGLang's recorder; it has neither logical_count nor records")
    return dump


def _first_line(error: Exception) -> str:
    return shown(str(error).partition("\n")[0].strip(), 100) if str(error) else type(error).__name__


def _tensor(value: Any, dims: tuple[int, ...], what: str) -> Tensor:
    """``value`` int64, if it is a tensor of whole numbers with so many dimensions, and not too large."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.dim() not in dims:
        raise RecordingError(f"{what} is no tensor with {' or '.join(map(str, dims))} dimensions")
    if value.is_floating_point() or value.is_complex() or not 0 < value.numel() <= MAX_VALUES:
        raise RecordingError(
            f"{what} is {list(value.shape)} {value.dtype}; it must hold 1 to {MAX_VALUES:,} whole numbers"
        )
    return value.to(torch.int64)


def _counts(value: Any, name: str) -> np.ndarray:
    """Counts [L, E], summed over steps where they stand apart."""
    count = _tensor(value, (2, 3), f"{name}: logical_count")
    return (count.sum(dim=0) if count.dim() == 3 else count).numpy()


def _records(dump: dict[str, Any], name: str) -> list[dict[str, Any]]:
    records = dump["records"]
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise RecordingError(f"{name}: records are {shown(records)}; they must be a list of passes")
    return records


def _logical(dump: dict[str, Any], name: str) -> Tensor:
    """The logical expert [L, P] of every physical one."""
    logical = _tensor(dump.get("last_physical_to_logical_map"), (2,), f"{name}: last_physical_to_logical_map")
    if int(logical.min()) < 0 or int(logical.max()) >= logical.shape[1]:
        raise RecordingError(f"{name}: last_physical_to_logical_map names experts that there are not")
    return logical


def _pass_counts(name: str, record: dict[str, Any], dump: dict[str, Any]) -> np.ndarray:
    """Logical counts [L, E] of one pass on one rank."""
    logical = _logical(dump, name)
    count = _tensor(record.get("global_physical_count"), (2,), f"{name}: global_physical_count")
    if count.shape != logical.shape:
        raise RecordingError(f"{name}: global_physical_count is {list(count.shape)}, and the map {list(logical.shape)}")
    total = torch.zeros(len(logical), int(logical.max()) + 1, dtype=torch.int64)
    return total.scatter_add_(1, logical, count).numpy()


def _sum(counts: list[np.ndarray], name: str) -> np.ndarray:
    if len({count.shape for count in counts}) > 1:
        raise RecordingError(f"{name}: the files have different numbers of layers or experts")
    return np.sum(counts, axis=0)


def _per_token(records: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> Recording:
    """Prompts are sequences as SGLang cut them; what a rank decoded, for many requests in turn, is one more."""
    prompts: list[np.ndarray] = []
    decoded: dict[Any, list[np.ndarray]] = {}
    experts = 0
    for name, record, dump in records:
        logical = _logical(dump, name)
        experts = max(experts, int(logical.max()) + 1)
        ids = _tensor(record["topk_ids_of_layer"], (3,), f"{name}: topk_ids_of_layer")
        if len(ids) != len(logical) or int(ids.max()) >= logical.shape[1]:
            raise RecordingError(f"{name}: topk_ids_of_layer names layers or experts that the map has not")
        by_layer = logical[:, None, :].expand(-1, ids.shape[1], -1)
        found = by_layer.gather(2, ids.clamp(min=0)).where(ids >= 0, -1).permute(1, 0, 2).numpy()  # [T, L, 8]
        cuts = record.get("extend_seq_lens")
        if isinstance(cuts, list) and all(type(cut) is int and cut >= 0 for cut in cuts) and sum(cuts) == len(found):
            prompts += np.split(found, np.cumsum(cuts)[:-1])
        else:
            decoded.setdefault(record.get("rank"), []).append(found)
    sequences = [*prompts, *(np.concatenate(tokens) for tokens in decoded.values())]
    name = records[0][0]
    if len({sequence.shape[1:] for sequence in sequences}) > 1:
        raise RecordingError(f"{name}: the records have different numbers of layers")
    experts_of = np.concatenate(sequences)
    some = experts_of >= 0
    layers = np.flatnonzero(some.any(axis=(0, 2)))
    experts_of = experts_of[:, layers][:, :, some.any(axis=(0, 1))]
    whole = (experts_of >= 0).all(axis=(1, 2))  # the others are padding
    if not (layers.size and whole.any()):
        raise RecordingError(f"{name}: no token has experts in all layers")
    owner = np.repeat(np.arange(len(sequences)), [len(sequence) for sequence in sequences])[whole]
    return from_ids(experts_of[whole], np.bincount(owner, minlength=len(sequences)), experts, layers, name)
