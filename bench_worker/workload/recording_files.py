"""What the files of recordings hold: arrays, tables and lines, before anyone asks whether they make sense.

Every file may be truncated or hostile: sizes are checked before anything is made of them, nothing is unpickled, and
what is wrong is one `RecordingError`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench_worker.errors import not_one_of, shown

__all__ = ["RecordingError", "arrays", "csv_counts", "is_dump", "json_counts", "read_bytes", "token_lines"]

#: Bytes of a file, and of the arrays packed in one; of text, which takes many times its size in memory.
MAX_BYTES = 256_000_000
MAX_TEXT_BYTES = 64_000_000
MAX_ENTRIES = 64
MAX_COUNT = 10**15
#: Names of the columns of a CSV file, and of the ids of a token in JSON lines.
COLUMNS = (("layer", "layer_id"), ("expert", "expert_id"), ("count", "tokens_routed"))
IDS = ("experts", "ids", "expert_ids", "topk_ids")


class RecordingError(ValueError):
    """A recording can't be used; the message is one sentence with the recording's name and, if any, the line."""


def read_bytes(path: Path, name: str) -> bytes:
    """The whole file, if it is one and no larger than `MAX_BYTES`."""
    try:
        if path.is_dir():
            raise RecordingError(f"{name}: is a folder; a recording is a file")
        if not path.exists():
            raise RecordingError(f"{name}: there is no such file")
        if not path.is_file():  # a pipe or a device would never end
            raise RecordingError(f"{name}: is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecordingError(f"{name}: can't be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise RecordingError(f"{name}: has more than {MAX_BYTES:,} bytes, the most that are read")
    if not data.strip():
        raise RecordingError(f"{name}: is empty")
    return data


def is_zip(data: bytes) -> bool:
    return data.startswith(b"PK")


def is_dump(path: Path) -> bool:
    """Whether ``path`` is a zip file as ``torch.save`` writes them, such as SGLang's dumps."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def arrays(data: bytes, name: str) -> dict[str, np.ndarray]:
    """The arrays of numbers in the bytes of an ``.npz`` file, by name."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if any(entry.filename.endswith("data.pkl") for entry in entries):
                raise RecordingError(
                    f"{name}: is a file of torch.save; if SGLang wrote it, make a recording of it with: "
                    "python -m bench_worker recording FILE.pt --out NAME.npz"
                )
            unpacked = sum(entry.file_size for entry in entries)
            if len(entries) > MAX_ENTRIES or unpacked > MAX_BYTES:
                raise RecordingError(
                    f"{name}: unpacks to {len(entries):,} entries of {unpacked:,} bytes; at most {MAX_ENTRIES} of "
                    f"{MAX_BYTES:,} bytes are read"
                )
            return {entry.filename.removesuffix(".npy"): _array(archive.read(entry), name) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"{name}: is no whole .npz file ({error})") from None


def _array(data: bytes, name: str) -> np.ndarray:
    """The array of numbers in the bytes of an ``.npy`` file; ``np.load`` would allocate whatever its header says."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise RecordingError(f"{name}: holds an array of the unknown version {version[0]}.{version[1]}")
    shape, by_column, dtype = read_header[version](file)
    if dtype.kind not in "iufbU":
        raise RecordingError(f"{name}: holds an array of {dtype}; only numbers are read")
    start = file.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise RecordingError(f"{name}: holds an array of {list(shape)} {dtype} in {len(data) - start:,} bytes")
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if by_column else "C")


def text(data: bytes, name: str) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise RecordingError(f"{name}: has more than {MAX_TEXT_BYTES:,} bytes of text, the most that are read")
    try:
        decoded = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordingError(f"{name}: is neither an .npz file nor UTF-8 text (byte {error.start:,})") from None
    if "\0" in decoded:
        raise RecordingError(f"{name}: is neither an .npz file nor text")
    return decoded


def json_value(line: str) -> Any:
    """The value of a JSON text, or None where it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def json_counts(document: Any, name: str, domain: str | None) -> dict[str, Any]:
    """``counts``, ``top_k``, ``num_experts`` and ``layers`` of a decoded JSON document, those that it has."""
    if not isinstance(document, dict) or not ({"domains", "counts"} & set(document)):
        raise RecordingError(f"{name}: is no JSON object with counts or domains")
    table = document.get("counts")
    if "domains" in document:
        domains = document["domains"]
        if not isinstance(domains, dict) or not domains:
            raise RecordingError(f"{name}: domains are no JSON object of tables by name")
        if domain is None and len(domains) == 1:
            domain = next(iter(domains))
        if domain is None:
            names = ", ".join(map(str, domains))
            raise RecordingError(
                f"{name}: holds {len(domains)} domains; name one of {names}, as in {name}#{next(iter(domains))}"
            )
        if domain not in domains:
            raise RecordingError(f"{name}: domain {not_one_of(domain, domains)}")
        table = domains[domain]
    elif domain is not None:
        raise RecordingError(f"{name}: has no domains, and {shown(domain)} is asked for")
    found: dict[str, Any] = {"counts": _table(table, name)}
    for key in ("top_k", "num_experts"):
        if (value := document.get(key)) is not None:
            if type(value) is not int:
                raise RecordingError(f"{name}: {key} is {shown(value)}; it must be a whole number")
            found[key] = value
    if (layers := document.get("layers")) is not None:
        if not isinstance(layers, list) or not all(_is_count(layer) for layer in layers):
            raise RecordingError(f"{name}: layers are {shown(layers)}; they must be a list of whole numbers")
        found["layers"] = np.array(layers, np.int64)
    return found


def _table(table: Any, name: str) -> np.ndarray:
    """Counts [L, E] of nested lists."""
    if not isinstance(table, list) or not table or not all(isinstance(row, list) for row in table):
        raise RecordingError(f"{name}: counts are {shown(table)}; they must be a list of lists, [layers][experts]")
    for layer, row in enumerate(table):
        if len(row) != len(table[0]):
            raise RecordingError(f"{name}: row {layer} has {len(row)} counts, and the first has {len(table[0])}")
        for expert, count in enumerate(row):
            if not _is_count(count):
                raise RecordingError(
                    f"{name}: row {layer}, expert {expert} is {shown(count)}; a count is a whole number from 0 to "
                    f"{MAX_COUNT:,}"
                )
    return np.array(table, np.int64)


def csv_counts(document: str, name: str) -> dict[str, Any]:
    """``counts`` and ``layers`` of a CSV file with a row for each layer and expert; pairs without a row count 0."""
    reader = csv.reader(io.StringIO(document, newline=None))
    found: dict[tuple[int, int], int] = {}
    try:
        header = [field.strip() for field in next(reader)]
        if len(header) != 3 or any(field not in names for field, names in zip(header, COLUMNS, strict=True)):
            known = ",".join(names[0] for names in COLUMNS)
            raise RecordingError(
                f"{name}, line 1: {shown(','.join(header))} starts no known recording; known are {known} (CSV), JSON "
                f"with counts or domains, JSON lines of experts, and .npz"
            )
        for row in reader:
            if not any(field.strip() for field in row):
                continue
            where = f"{name}, line {reader.line_num}"
            if len(row) != 3:
                raise RecordingError(f"{where}: has {len(row)} columns; it must have 3")
            layer, expert, count = (
                _whole(field, f"{where}: {column}") for field, column in zip(row, header, strict=True)
            )
            if (layer, expert) in found:
                raise RecordingError(f"{where}: layer {layer}, expert {expert} stands there twice")
            found[layer, expert] = count
    except csv.Error as error:
        raise RecordingError(f"{name}, line {reader.line_num}: is not a CSV row ({error})") from None
    if not found:
        raise RecordingError(f"{name}: has a header and no rows")
    layers = sorted({layer for layer, _ in found})
    experts = 1 + max(expert for _, expert in found)
    if experts > 100_000:
        raise RecordingError(f"{name}: an expert is {experts - 1}; no model has so many")
    row_of = {layer: row for row, layer in enumerate(layers)}
    counts = np.zeros((len(layers), experts), np.int64)
    for (layer, expert), count in found.items():
        counts[row_of[layer], expert] = count
    return {"counts": counts, "layers": np.array(layers)}


def _whole(field: str, what: str) -> int:
    field = field.strip()
    if not (field.isascii() and field.isdigit() and len(field) <= 16 and int(field) <= MAX_COUNT):
        raise RecordingError(f"{what} is {shown(field)}; it must be a whole number from 0 to {MAX_COUNT:,}")
    return int(field)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def token_lines(document: str, name: str) -> dict[str, Any]:
    """``ids`` [T, L, k] and ``seq_lens`` of JSON lines, one a token. Another ``sequence`` begins a new one."""
    tokens: list[list[list[int]]] = []
    lengths: list[int] = []
    last: Any = None
    for number, line in _numbered(document):
        where = f"{name}, line {number}"
        value = json_value(line)
        sequence = value.get("sequence") if isinstance(value, dict) else None
        if isinstance(value, dict):
            value = next((value[key] for key in IDS if key in value), None)
        if isinstance(value, list) and value and not isinstance(value[0], list):
            value = [value]  # one layer
        if not _are_ids(value):
            raise RecordingError(f"{where}: {shown(line)} is not a token's experts, a list for each layer")
        if tokens and [len(layer) for layer in value] != [len(layer) for layer in tokens[0]]:
            raise RecordingError(f"{where}: has other numbers of layers or experts than the first token")
        if not tokens or sequence != last:
            lengths.append(0)
        last = sequence
        lengths[-1] += 1
        tokens.append(value)
    if len({len(layer) for layer in tokens[0]}) > 1:
        raise RecordingError(f"{name}: a token has not the same number of experts in all layers")
    return {"ids": np.array(tokens, np.int64), "seq_lens": np.array(lengths)}


def _are_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(layer, list) and layer and all(type(e) is int and 0 <= e < 2**15 for e in layer)
            for layer in value
        )
    )


def _numbered(document: str) -> Iterator[tuple[int, str]]:
    """Lines that aren't blank, with their numbers."""
    return ((number, line) for number, line in enumerate(document.splitlines(), 1) if line.strip())


def starts_a_token(document: str) -> bool:
    """Whether the first line is a whole JSON value that holds a token's experts, so that the file is one of lines."""
    _, first = next(_numbered(document))
    value = json_value(first)
    return isinstance(value, list) or (isinstance(value, dict) and any(key in value for key in IDS))
