"""The traces room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench_worker.workload.requests import read_trace
from webapp.traces.models import Trace
from webapp.traces.store import import_trace

pytestmark = pytest.mark.django_db


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    file = tmp_path / "mine.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,1000,7\n0.30000000000000004,2000,9\n")
    return import_trace(file)[0]


def test_an_empty_room_says_how_a_trace_comes_in(signed_in: Any) -> None:
    page = signed_in.get("/traces/").content.decode()
    assert "import_trace FILE" in page
    assert 'role="button"' in page
    assert page.count("<h1") == 1


def test_the_list_has_names_sums_and_lengths(signed_in: Any, trace: Trace) -> None:
    page = signed_in.get("/traces/").content.decode()
    for text in ("mine", "3,000", "16", "1,500, 1,900, 1,990", "mine.csv", "conversation"):
        assert text in page


def test_the_list_never_reads_the_arrays(signed_in: Any, trace: Trace, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(3) as queries:  # session, user, traces
        signed_in.get("/traces/")
    assert not any("packed" in query["sql"] for query in queries.captured_queries)


def test_an_entry_downloads_as_plain_csv(signed_in: Any, trace: Trace, tmp_path: Path) -> None:
    response = signed_in.get("/traces/mine.csv")
    assert response["Content-Disposition"] == 'attachment; filename="mine.csv"'
    file = tmp_path / "downloaded.csv"
    file.write_bytes(b"".join(response.streaming_content))
    assert list(read_trace(file)) == list(trace.requests())


def test_an_unknown_entry_is_not_found(signed_in: Any) -> None:
    assert signed_in.get("/traces/none.csv").status_code == 404


def test_it_asks_to_sign_in(client: Any) -> None:
    assert client.get("/traces/").status_code == 302
    assert client.get("/traces/mine.csv").status_code == 302
