"""The JSON document in the bytes of an experiment file. Pure; every file that is not one gets one sentence."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from bench_worker.errors import SpecError, shown

__all__ = ["MAX_DOCUMENT_BYTES", "decode"]

MAX_DOCUMENT_BYTES = 1_000_000


def decode(data: bytes) -> Any:
    """The value that ``data`` holds as JSON (RFC 8259) in UTF-8. Raises `SpecError`, whose field is ``experiment``.

    Stricter than Python's decoder: no NaN or Infinity, no name twice in one object.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise _bad(f"the document has more than {MAX_DOCUMENT_BYTES:,} bytes, the most that are read")
    try:
        text = data.decode("utf-8-sig")  # a byte order mark is harmless
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_name_twice)
    except SpecError:
        raise
    except UnicodeDecodeError as error:
        raise _bad(f"the document is not UTF-8 text (byte {error.start:,})") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno:,}, column {error.colno:,}: {error.msg}"
        raise _bad(f"the document is not valid JSON ({where})") from None
    except RecursionError:
        raise _bad("the document nests too deep") from None
    except ValueError:  # json leaves whole numbers to int(), which refuses thousands of digits
        raise _bad("the document holds a number of thousands of digits") from None


def _bad(message: str, value: Any = None) -> SpecError:
    return SpecError("experiment", value, message)


def _no_constant(name: str) -> NoReturn:
    raise _bad(f"the document is not valid JSON ({name} is no JSON value)", name)


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _bad(f"{shown(name)} stands twice in the same object of the document", name)
        found[name] = value
    return found
