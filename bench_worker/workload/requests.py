"""Request traces: read from files, written, or generated.

Three formats are known by the first line of the file:

- Azure CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``, timestamps as ``2023-11-16 18:15:46.6805900`` with an optional
  UTC offset (Azure/AzurePublicDataset); arrivals count from the first row;
- Mooncake JSON lines: objects with ``timestamp`` in milliseconds, ``input_length`` and ``output_length``
  (kvcache-ai/Mooncake);
- plain CSV: ``arrival_s,prompt_tokens,output_tokens``, which `write_trace` writes.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from bench_worker.errors import not_one_of, shown
from bench_worker.workload import Request
from bench_worker.workload.generators import GENERATORS
from bench_worker.workload.prefix import BLOCK_TOKENS

__all__ = [
    "Request",
    "TraceError",
    "load",
    "longest_sequence",
    "read_prefixes",
    "read_trace",
    "with_lengths",
    "write_trace",
]

AZURE_HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")
PLAIN_HEADER = ("arrival_s", "prompt_tokens", "output_tokens")

#: Longer lines belong to no trace; the bound keeps a file without line breaks out of memory.
MAX_LINE_CHARACTERS = 1_000_000
#: Above what any model holds, and 300 years: the bounds refuse nonsense and keep sums exact.
MAX_TOKENS = 10_000_000
MAX_ARRIVAL_S = 1e10

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)

#: Line number, then the arrival, prompt and output fields as the file has them.
_Row = tuple[int, Any, Any, Any]
#: Turns a field into its value; None for a field that isn't allowed.
_Convert = Callable[[Any], float | None]


class TraceError(ValueError):
    """A trace can't be used; the message is one sentence with the trace's name and, where there is one, the line."""


def read_trace(path: Path, name: str | None = None) -> Iterator[Request]:
    """The requests of a trace file in order, one at a time, so that a file of any size can be read.

    ``name`` is what errors call the file; its own name by default. Raises `TraceError`, while iterating, for a file
    that is missing, empty, not text or in none of the three formats, and for the first row that is malformed or earlier
    than the row before it.
    """
    name = name or path.name
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            yield from _requests(_lines(file, name), name)
    except FileNotFoundError:
        raise TraceError(f"{name}: there is no such file") from None
    except IsADirectoryError:
        raise TraceError(f"{name}: is a directory; a trace is a file") from None
    except OSError as error:
        raise TraceError(f"{name}: can't be read: {error.strerror}") from None


def read_prefixes(path: Path, count: int, name: str | None = None) -> list[list[int]]:
    """The blocks of the first ``count`` prompts of a Mooncake trace, from its ``hash_ids``: one hash for each 512
    tokens and all that stands before them.

    Raises `TraceError` as `read_trace`, for a trace of another format, and for a row whose hashes don't cover its
    prompt.
    """
    name = name or path.name
    requests = list(islice(read_trace(path, name), count))
    prefixes = []
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        rows = ((number, line) for number, line in enumerate(_lines(file, name), 1) if line.strip())
        for request, (number, line) in zip(requests, rows, strict=False):
            if not line.lstrip().startswith("{"):
                raise TraceError(f"{name}: names no prefixes; only Mooncake's JSON lines do, as hash_ids")
            hashes = json.loads(line).get("hash_ids")
            if not isinstance(hashes, list) or any(type(one) is not int for one in hashes):
                raise TraceError(
                    f"{name}, line {number}: hash_ids is {shown(hashes)}; it must be a list of whole numbers"
                )
            needed = -(-request.prompt_tokens // BLOCK_TOKENS)
            if len(hashes) < needed:
                raise TraceError(
                    f"{name}, line {number}: has {len(hashes):,} hash_ids; its prompt of {request.prompt_tokens:,} "
                    f"tokens has {needed:,} blocks of {BLOCK_TOKENS}"
                )
            prefixes.append(hashes)
    return prefixes


def write_trace(path: Path, requests: Iterable[Request]) -> None:
    """Write ``requests`` as plain CSV; `read_trace` gives back the same values."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(PLAIN_HEADER)
        writer.writerows(requests)


def load(
    name: str, count: int, seed: int, library: Mapping[str, Path] | None = None, allow_paths: bool = False
) -> list[Request]:
    """The first ``count`` requests of the trace called ``name``.

    A built-in generator (seeded by ``seed``) comes before an entry of ``library``, and that before the path of a file,
    which counts only if ``allow_paths``. Raises `TraceError` for an unknown name and a trace with fewer requests.
    """
    if name in GENERATORS:
        return GENERATORS[name].generate(count, seed)
    library = library or {}
    if name in library:
        path, called = library[name], name
    elif not allow_paths:
        raise TraceError(not_one_of(name, [*GENERATORS, *library]))
    elif _exists(Path(name)):
        path, called = Path(name), Path(name).name
    else:
        raise TraceError(f"{not_one_of(name, [*GENERATORS, *library])}, and there is no such file")
    requests = list(islice(read_trace(path, called), count))
    if len(requests) < count:
        raise TraceError(f"{called}: holds {len(requests):,} requests, and {count:,} are asked for")
    return requests


def with_lengths(
    requests: Iterable[Request], prompt_tokens: int | None = None, output_tokens: int | None = None
) -> list[Request]:
    """The same arrivals with every prompt and every output of the given length; None keeps the trace's own."""
    return [
        Request(
            request.arrival_s,
            request.prompt_tokens if prompt_tokens is None else prompt_tokens,
            request.output_tokens if output_tokens is None else output_tokens,
        )
        for request in requests
    ]


def longest_sequence(requests: Iterable[Request]) -> int:
    """Tokens of the longest prompt with its output: what one request may need in the KV cache. 0 without requests."""
    return max((request.prompt_tokens + request.output_tokens for request in requests), default=0)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long to be one
        return False


def _lines(file: TextIO, name: str) -> Iterator[str]:
    """Lines without their ends, checked to be text. Undecodable bytes arrive as lone surrogates."""
    number = 0
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        number += 1
        if "\0" in line or not _is_unicode(line):
            raise TraceError(f"{name}, line {number}: is not UTF-8 text; a trace is a CSV or JSON lines file")
        if len(line) > MAX_LINE_CHARACTERS:
            raise TraceError(f"{name}, line {number}: is longer than {MAX_LINE_CHARACTERS:,} characters")
        yield line.rstrip("\n")


def _is_unicode(line: str) -> bool:
    if line.isascii():
        return True
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _requests(lines: Iterator[str], name: str) -> Iterator[Request]:
    form, rows = _recognised(lines, name)
    last_s = -math.inf
    for number, *fields in rows:
        arrival, prompt, output = fields
        values = (form.read_arrival(arrival), _tokens(prompt), _tokens(output))
        for column, value, field, allowed in zip(form.columns, values, fields, form.allowed, strict=True):
            if value is None:
                raise TraceError(f"{name}, line {number}: {column} is {shown(field)}; it must be {allowed}")
        request = Request(*values)  # type: ignore[arg-type]  # none is None
        if request.arrival_s < last_s:
            column = form.columns[0]
            raise TraceError(f"{name}, line {number}: {column} {shown(arrival)} is earlier than in the row before")
        last_s = request.arrival_s
        yield request
    if last_s == -math.inf:
        raise TraceError(f"{name}: has a header and no rows")


class _Format(NamedTuple):
    """A trace format: its columns, how an arrival becomes seconds, and in words what an arrival may be."""

    columns: tuple[str, str, str]
    read_arrival: _Convert
    arrival: str

    @property
    def allowed(self) -> tuple[str, str, str]:
        tokens = f"a whole number from 1 to {MAX_TOKENS:,}"
        return self.arrival, tokens, tokens


def _recognised(lines: Iterator[str], name: str) -> tuple[_Format, Iterator[_Row]]:
    """The format that the first line shows, and the rows."""
    number, first = next(((n, line) for n, line in enumerate(lines, 1) if line.strip()), (0, ""))
    header = tuple(field.strip().strip('"') for field in first.split(","))
    if not first:
        raise TraceError(f"{name}: is empty")
    if header == AZURE_HEADER:
        azure = _Format(AZURE_HEADER, _SinceFirst(), "a time such as 2023-11-16 18:15:46.6805900")
        return azure, _csv_rows(lines, number, name)
    if header == PLAIN_HEADER:
        plain = _Format(PLAIN_HEADER, _seconds, f"a number of seconds from 0 to {MAX_ARRIVAL_S:,.0f}")
        return plain, _csv_rows(lines, number, name)
    if first.lstrip().startswith("{"):
        allowed = f"a number of milliseconds from 0 to {1000 * MAX_ARRIVAL_S:,.0f}"
        return _Format(MOONCAKE_KEYS, _milliseconds, allowed), _json_rows(chain([first], lines), number, name)
    raise TraceError(
        f"{name}, line {number}: {shown(first)} starts no known trace; known are {','.join(AZURE_HEADER)} (Azure), "
        f"{','.join(PLAIN_HEADER)}, and JSON lines with {', '.join(MOONCAKE_KEYS)} (Mooncake)"
    )


def _csv_rows(lines: Iterator[str], header: int, name: str) -> Iterator[_Row]:
    """Rows below the header, which stands in line ``header``."""
    reader = csv.reader(lines)
    try:
        for row in reader:
            if not any(field.strip() for field in row):
                continue
            if len(row) != len(PLAIN_HEADER):
                raise TraceError(f"{name}, line {header + reader.line_num}: has {len(row)} columns; it must have 3")
            arrival, prompt, output = (field.strip() for field in row)
            yield header + reader.line_num, arrival, prompt, output
    except csv.Error as error:
        raise TraceError(f"{name}, line {header + reader.line_num}: is not a CSV row ({error})") from None


def _json_rows(lines: Iterator[str], first: int, name: str) -> Iterator[_Row]:
    """Rows from line ``first`` on."""
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise TraceError(f"{name}, line {number}: {shown(line)} is not a JSON object")
        missing = [key for key in MOONCAKE_KEYS if key not in row]
        if missing:
            raise TraceError(f"{name}, line {number}: {missing[0]} is missing; a row has {', '.join(MOONCAKE_KEYS)}")
        arrival, prompt, output = (row[key] for key in MOONCAKE_KEYS)
        yield number, arrival, prompt, output


def _tokens(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
        value = int(value)
    return value if type(value) is int and 1 <= value <= MAX_TOKENS else None


def _seconds(value: str) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds <= MAX_ARRIVAL_S else None


def _milliseconds(value: Any) -> float | None:
    return value / 1000 if type(value) in (int, float) and 0 <= value <= 1000 * MAX_ARRIVAL_S else None


class _SinceFirst:
    """Seconds from the first timestamp that it is given. Exact to the nanosecond, which a float of the date isn't."""

    def __init__(self) -> None:
        self.first_ns: int | None = None

    def __call__(self, value: str) -> float | None:
        match = _TIMESTAMP.fullmatch(value)
        if match is None:
            return None
        try:
            date = datetime.fromisoformat(match[1] + (match[3] or "Z"))
            ns = int(date.timestamp()) * 10**9 + int((match[2] or "").ljust(9, "0"))
        except ValueError:  # month 13
            return None
        if self.first_ns is None:
            self.first_ns = ns
        return (ns - self.first_ns) / 1e9
