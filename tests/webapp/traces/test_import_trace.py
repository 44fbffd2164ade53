"""Importing a trace: kept once, whole, under a name that nothing else has."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

from bench_worker.workload import Request
from bench_worker.workload.requests import TraceError, read_trace
from webapp.traces import store
from webapp.traces.models import Trace
from webapp.traces.store import import_trace, trace_files, traces_library

pytestmark = pytest.mark.django_db
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"
AZURE = Path(__file__).parents[3] / ".." / "shared" / "data" / "requests" / "azure_llm_2023_conv.csv"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_trace_is_kept_whole_with_its_figures(tmp_path: Path, member: Any) -> None:
    file = write(tmp_path / "My trace.csv", PLAIN + "0,10,1\n0.1,20,2\n0.30000000000000004,40,3\n")
    trace, is_new = import_trace(file, by=member)
    trace.refresh_from_db()
    assert is_new
    assert (trace.name, trace.source_file, trace.format, trace.created_by) == (
        "my-trace",
        "My trace.csv",
        "CSV",
        member,
    )
    assert list(trace.requests()) == [Request(0.0, 10, 1), Request(0.1, 20, 2), Request(0.30000000000000004, 40, 3)]
    assert (trace.num_requests, trace.total_prompt_tokens, trace.total_output_tokens) == (3, 70, 6)
    assert trace.prompt_quantiles == {"p50": 20, "p90": 36, "p99": pytest.approx(39.6), "max": 40}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n", "Azure CSV"),
        ('{"timestamp": 0, "input_length": 6, "output_length": 5}\n', "Mooncake JSON lines"),
        (f"\n\n{PLAIN}0,1,1\n", "CSV"),
    ],
)
def test_it_knows_the_format(tmp_path: Path, text: str, expected: str) -> None:
    trace, _ = import_trace(write(tmp_path / "trace", text))
    assert trace.format == expected


def test_the_same_requests_again_are_the_same_entry(tmp_path: Path) -> None:
    first, _ = import_trace(write(tmp_path / "a.csv", PLAIN + "0,10,1\n"))
    again, is_new = import_trace(write(tmp_path / "b.csv", PLAIN + "0.0,10,1\n"))
    assert (again, is_new) == (first, False)
    assert Trace.objects.count() == 1


def test_a_taken_name_is_refused(tmp_path: Path) -> None:
    import_trace(write(tmp_path / "a.csv", PLAIN + "0,10,1\n"))
    with pytest.raises(TraceError, match="'a' is taken by another trace"):
        import_trace(write(tmp_path / "other.csv", PLAIN + "0,11,1\n"), name="a")


@pytest.mark.parametrize("name", ["", "Upper", "with space", "a/b", "x" * 101, "../up"])
def test_a_name_that_is_no_slug_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError, match="it must have 1 to 100 lower-case letters"):
        import_trace(write(tmp_path / "a.csv", PLAIN + "0,10,1\n"), name=name)


def test_the_names_of_built_in_traces_stay_theirs(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="'conversation' is a built-in trace"):
        import_trace(write(tmp_path / "conversation.csv", PLAIN + "0,10,1\n"))


def test_a_trace_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_REQUESTS", 1)
    with pytest.raises(TraceError, match=r"a\.csv: holds more than 1 requests"):
        import_trace(write(tmp_path / "a.csv", PLAIN + "0,10,1\n1,10,1\n"))


def test_the_first_requests_of_a_long_trace_can_be_kept_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(store, "MAX_REQUESTS", 2)
    file = write(tmp_path / "a.csv", PLAIN + "0,10,1\n1,20,1\n2,30,1\nnever read\n")
    with pytest.raises(TraceError, match=r"a\.csv: holds more than 2 requests, .*; keep its first 2 alone"):
        import_trace(write(tmp_path / "a.csv", PLAIN + "0,10,1\n1,20,1\n2,30,1\n"))
    write(file, PLAIN + "0,10,1\n1,20,1\n2,30,1\nnever read\n")
    call_command("import_trace", str(file), "--first", "2")
    assert [request.prompt_tokens for request in Trace.objects.get().requests()] == [10, 20]
    with pytest.raises(CommandError, match="--first: 0 is not allowed; it must be at least 1"):
        call_command("import_trace", str(file), "--first", "0")


def test_the_file_is_never_held_in_memory(tmp_path: Path) -> None:
    """As published, Mooncake's rows carry hash ids: here 32 MB of them for 100 requests."""
    row = '{"timestamp": %d, "input_length": 6, "output_length": 5, "hash_ids": [%s]}\n'
    file = tmp_path / "mooncake.jsonl"
    with file.open("w") as out:
        out.writelines(row % (number, ",".join(["1234567"] * 40_000)) for number in range(100))
    assert file.stat().st_size > 32_000_000
    import_trace(write(tmp_path / "warm.csv", PLAIN + "0,10,1\n"))
    tracemalloc.start()
    try:
        trace, _ = import_trace(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert trace.num_requests == 100
    assert peak < 8_000_000  # one row at a time


def test_what_an_entry_holds_is_all_that_many_rows_take(tmp_path: Path) -> None:
    count = 100_000
    file = write(tmp_path / "many.csv", PLAIN + "".join(f"{number},{number % 1000 + 1},7\n" for number in range(count)))
    import_trace(write(tmp_path / "warm.csv", PLAIN + "0,10,1\n"))
    tracemalloc.start()
    try:
        import_trace(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000 + 200 * count  # 16 bytes each, a few times on its way into the database


def test_the_measuring_program_reads_back_what_was_imported(tmp_path: Path) -> None:
    import_trace(
        write(tmp_path / "a.csv", PLAIN + "0,10,1\n0.30000000000000004,20,2\n5e-324,1,1\n".replace("5e-324", "0.4"))
    )
    out = tmp_path / "out"
    out.mkdir()
    assert list(read_trace(trace_files("a", out)["a"])) == list(Trace.objects.get().requests())
    assert len(list(read_trace(trace_files("a", out, count=2)["a"]))) == 2
    assert trace_files("unknown", out) == {}
    assert traces_library().traces == {"a"}


def test_a_trace_of_another_length_than_it_says_is_refused_by_the_database(tmp_path: Path) -> None:
    trace, _ = import_trace(write(tmp_path / "a.csv", PLAIN + "0,10,1\n"))
    with pytest.raises(IntegrityError), transaction.atomic():
        Trace.objects.filter(pk=trace.pk).update(packed=bytes(trace.packed)[:-1])


# The command


def test_the_command_says_what_it_kept(tmp_path: Path, capsys: Any) -> None:
    file = write(tmp_path / "a.csv", PLAIN + "0,1000,1\n1,2000,2\n")
    call_command("import_trace", str(file), "--name", "mine")
    assert capsys.readouterr().out == "mine: 2 requests, 3,000 prompt tokens, 3 output tokens\n"
    call_command("import_trace", str(file))
    assert capsys.readouterr().out == "a.csv: the same requests are already here as mine\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "a.csv: there is no such file"),
        (b"", "a.csv: is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "a.csv, line 1: is not UTF-8 text; a trace is a CSV or JSON lines file"),
        (PLAIN.encode(), "a.csv: has a header and no rows"),
        (PLAIN.encode() + b"0,10,1\n1,ten,1\n",
         "a.csv, line 3: prompt_tokens is 'ten'; it must be a whole number from 1 to 10,000,000"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_sentence_and_exit_code_2(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    file = tmp_path / "a.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CommandError) as refused:
        call_command("import_trace", str(file))
    assert (str(refused.value), refused.value.returncode) == (sentence, 2)
    assert not Trace.objects.exists()


@pytest.mark.skipif(not AZURE.exists(), reason="needs the published Azure trace in ../shared/data")
def test_the_published_azure_trace_comes_in_whole(capsys: Any) -> None:
    call_command("import_trace", str(AZURE), "--name", "azure-conv")
    trace = Trace.objects.get()
    assert (trace.format, trace.num_requests) == ("Azure CSV", 19_366)
    assert list(trace.requests()) == list(read_trace(AZURE))
