import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.workload import requests as module
from bench_worker.workload.generators import generate
from bench_worker.workload.requests import (
    Request,
    TraceError,
    load,
    longest_sequence,
    read_prefixes,
    read_trace,
    with_lengths,
    write_trace,
)

SHARED = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "requests"

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 2500, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}\n'
)
PLAIN = "arrival_s,prompt_tokens,output_tokens\n0.0,10,2\n1.5,20,3\n"


@pytest.fixture
def trace(tmp_path):
    """Writes a trace file named t.csv and gives its path."""

    def write(content):
        path = tmp_path / "t.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def problem(path, name=None):
    with pytest.raises(TraceError) as caught:
        list(read_trace(path, name))
    return str(caught.value)


# Formats


def test_an_azure_trace_counts_arrivals_from_its_first_row(trace):
    assert list(read_trace(trace(AZURE))) == [Request(0.0, 374, 44), Request(4.314579, 396, 109)]


def test_azure_timestamps_keep_their_seventh_digit(trace):
    rows = "2023-11-16 23:59:59.9999999,1,1\n2023-11-17 00:00:00.0000000,1,1\n2023-11-17 00:00:01,1,1\n"
    assert [r.arrival_s for r in read_trace(trace(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"))] == [
        0.0,
        1e-7,
        1.0000001,
    ]


def test_azure_timestamps_may_carry_a_utc_offset(trace):
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:00.109930+02:00,2399,6\n"
    requests = list(read_trace(trace(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")))
    assert requests == [Request(0.0, 2162, 5), Request(0.1, 2399, 6)]


def test_a_mooncake_trace_gives_milliseconds_as_seconds(trace):
    assert list(read_trace(trace(MOONCAKE))) == [Request(0.0, 6758, 500), Request(2.5, 7322, 490)]


def test_a_plain_trace_is_read_as_it_stands(trace):
    assert list(read_trace(trace(PLAIN))) == [Request(0.0, 10, 2), Request(1.5, 20, 3)]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\r\n", "\n").replace("\n", "\r\n"),
        lambda text: text.replace("\r\n", "\n").replace("\n", "\r"),
        lambda text: text.replace("\r\n", "\n").replace("\n", "\r\n", 1),
        lambda text: text + "\n\n  \n",
        lambda text: "\n" + text.replace("\n", "\n\n"),
    ],
    ids=["byte order mark", "CRLF", "CR", "mixed line ends", "blank last lines", "blank lines"],
)
@pytest.mark.parametrize("content", [AZURE, MOONCAKE, PLAIN], ids=["azure", "mooncake", "plain"])
def test_line_ends_blank_lines_and_a_byte_order_mark_change_nothing(trace, tmp_path, content, change):
    plain = list(read_trace(trace(content)))
    assert list(read_trace(trace(change(content)))) == plain


def test_fields_may_be_quoted_and_padded(trace):
    assert list(read_trace(trace('"arrival_s","prompt_tokens", output_tokens\n"0.5", 10 ,"2"\n'))) == [
        Request(0.5, 10, 2)
    ]


@given(
    st.lists(
        st.tuples(
            st.floats(0, module.MAX_ARRIVAL_S),
            st.integers(1, module.MAX_TOKENS),
            st.integers(1, module.MAX_TOKENS),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_is_written_is_read_back(tmp_path_factory, rows):
    requests = [Request(*row) for row in sorted(rows)]
    path = tmp_path_factory.mktemp("trace") / "written.csv"
    write_trace(path, requests)
    assert list(read_trace(path)) == requests


def test_a_large_file_does_not_fill_memory(trace):
    path = trace(PLAIN + "2,30,4\n" * 200_000)  # 1.4 MB
    tracemalloc.start()
    count = sum(1 for _ in read_trace(path))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 200_002
    assert peak_bytes < 200_000


@pytest.mark.parametrize(
    ("file", "count", "prompts", "outputs"),
    [
        ("azure_llm_2023_conv.csv", 19_366, 22_361_870, 4_088_665),
        ("azure_llm_2023_code.csv", 8_819, 18_059_974, 245_896),
        ("mooncake_conversation_head2000.jsonl", 2_000, None, None),
    ],
)
def test_real_traces_are_read_whole(file, count, prompts, outputs):
    path = SHARED / file
    if not path.exists():
        pytest.skip(f"needs the public trace shared/data/requests/{file}")
    requests = list(read_trace(path))
    assert len(requests) == count
    if prompts:
        assert sum(r.prompt_tokens for r in requests) == prompts
        assert sum(r.output_tokens for r in requests) == outputs


# Files that are no trace


def test_a_missing_file_is_named(tmp_path):
    assert problem(tmp_path / "gone.csv") == "gone.csv: there is no such file"


def test_a_directory_is_refused(tmp_path):
    assert problem(tmp_path) == f"{tmp_path.name}: is a directory; a trace is a file"


def test_an_unreadable_path_says_why(tmp_path):
    assert problem(tmp_path / ("x" * 300)).endswith("can't be read: File name too long")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(trace, content):
    assert problem(trace(content)) == "t.csv: is empty"


@pytest.mark.parametrize(
    "content", [b"\x1f\x8b\x08\x00rest", b"PK\x03\x04\x00\x00", AZURE.encode("utf-16"), b"caf\xe9,1,2\n"]
)
def test_a_binary_file_is_refused(trace, content):
    assert problem(trace(content)) == "t.csv, line 1: is not UTF-8 text; a trace is a CSV or JSON lines file"


def test_bytes_that_are_not_text_are_found_in_their_line(trace):
    assert problem(trace(PLAIN.encode() + b"2,3\xff,4\n")).startswith("t.csv, line 4: is not UTF-8 text")


def test_a_file_without_line_ends_is_not_read_whole(trace):
    assert problem(trace(b"a" * 3_000_000)) == "t.csv, line 1: is longer than 1,000,000 characters"


def test_an_unknown_header_names_the_known_ones(trace):
    assert problem(trace("time,in,out\n1,2,3\n")) == (
        "t.csv, line 1: 'time,in,out' starts no known trace; "
        "known are TIMESTAMP,ContextTokens,GeneratedTokens (Azure), arrival_s,prompt_tokens,output_tokens, "
        "and JSON lines with timestamp, input_length, output_length (Mooncake)"
    )


def test_a_long_first_line_is_cut_in_the_message(trace):
    assert len(problem(trace("é" * 200_000))) < 350


def test_a_header_alone_is_refused(trace):
    assert problem(trace("arrival_s,prompt_tokens,output_tokens\n\n")) == "t.csv: has a header and no rows"


# Rows

TOKENS = "it must be a whole number from 1 to 10,000,000"
SECONDS = "it must be a number of seconds from 0 to 10,000,000,000"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2,abc,3", f"prompt_tokens is 'abc'; {TOKENS}"),
        ("2,0,3", f"prompt_tokens is '0'; {TOKENS}"),
        ("2,5,-1", f"output_tokens is '-1'; {TOKENS}"),
        ("2,5,1.5", f"output_tokens is '1.5'; {TOKENS}"),
        ("2,5,", f"output_tokens is ''; {TOKENS}"),
        ("2,5,10000001", f"output_tokens is '10000001'; {TOKENS}"),
        ("2,1_0,3", f"prompt_tokens is '1_0'; {TOKENS}"),
        ("2,٣,3", f"prompt_tokens is '٣'; {TOKENS}"),
        (f"2,{'9' * 50},3", f"prompt_tokens is '{'9' * 50}'; {TOKENS}"),
        ("soon,5,3", f"arrival_s is 'soon'; {SECONDS}"),
        ("nan,5,3", f"arrival_s is 'nan'; {SECONDS}"),
        ("inf,5,3", f"arrival_s is 'inf'; {SECONDS}"),
        ("-1,5,3", f"arrival_s is '-1'; {SECONDS}"),
        ("2,5", "has 2 columns; it must have 3"),
        ("2,5,3,4", "has 4 columns; it must have 3"),
        ("1.25,5,3", "arrival_s '1.25' is earlier than in the row before"),
    ],
)
def test_a_bad_plain_row_names_line_column_and_value(trace, row, message):
    assert problem(trace(f"{PLAIN}\n{row}\n9,9,9\n")) == f"t.csv, line 5: {message}"


@pytest.mark.parametrize("time", ["yesterday", "2023-13-01 00:00:00", "2023-11-16 18:15:46.", "18:15:46"])
def test_a_bad_azure_time_names_line_and_value(trace, time):
    assert problem(trace(f"{AZURE}\n{time},1,1")) == (
        f"t.csv, line 4: TIMESTAMP is '{time}'; it must be a time such as 2023-11-16 18:15:46.6805900"
    )


def test_an_azure_row_earlier_than_the_one_before_is_refused(trace):
    assert problem(trace(f"{AZURE}\n2023-11-16 18:15:50.9951689,1,1")) == (
        "t.csv, line 4: TIMESTAMP '2023-11-16 18:15:50.9951689' is earlier than in the row before"
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{oops", "'{oops' is not a JSON object"),
        ("[1, 2]", "'[1, 2]' is not a JSON object"),
        ("[" * 100_000, f"'{'[' * 58}… is not a JSON object"),
        (
            '{"timestamp": 1, "input_length": 2}',
            "output_length is missing; a row has timestamp, input_length, output_length",
        ),
        ('{"timestamp": 9000, "input_length": 2.0, "output_length": 3}', f"input_length is 2.0; {TOKENS}"),
        ('{"timestamp": 9000, "input_length": 2, "output_length": true}', f"output_length is True; {TOKENS}"),
        ('{"timestamp": 9000, "input_length": 2, "output_length": null}', f"output_length is None; {TOKENS}"),
        (
            '{"timestamp": NaN, "input_length": 2, "output_length": 3}',
            "timestamp is nan; it must be a number of milliseconds from 0 to 10,000,000,000,000",
        ),
        (
            '{"timestamp": "0", "input_length": 2, "output_length": 3}',
            "timestamp is '0'; it must be a number of milliseconds from 0 to 10,000,000,000,000",
        ),
        ('{"timestamp": 7, "input_length": 2, "output_length": 3}', "timestamp 7 is earlier than in the row before"),
    ],
)
def test_a_bad_mooncake_row_names_line_key_and_value(trace, row, message):
    assert problem(trace(f"{MOONCAKE}{row}\n")) == f"t.csv, line 3: {message}"


def test_a_field_beyond_any_csv_is_refused_with_its_line(trace):
    assert problem(trace(f"{PLAIN}1,{'9' * 200_000},3\n")).startswith("t.csv, line 4: is not a CSV row (field larger")


def test_errors_use_the_name_they_are_given(trace):
    assert problem(trace(""), name="march.csv") == "march.csv: is empty"


# By name


def test_a_built_in_trace_is_generated():
    assert load("code", 5, seed=3) == generate("code", 5, seed=3)


def test_a_library_entry_gives_its_first_requests(trace):
    assert load("ours", 1, seed=0, library={"ours": trace(PLAIN)}) == [Request(0.0, 10, 2)]


def test_a_library_entry_is_named_in_its_errors(trace):
    with pytest.raises(TraceError, match=r"^ours, line 2: "):
        load("ours", 1, seed=0, library={"ours": trace("arrival_s,prompt_tokens,output_tokens\nx,1,1\n")})


def test_a_path_counts_only_where_paths_are_allowed(trace):
    path = str(trace(PLAIN))
    assert load(path, 2, seed=0, allow_paths=True)[1] == Request(1.5, 20, 3)
    with pytest.raises(TraceError, match=r"is not one of conversation, code, ours$"):
        load(path, 2, seed=0, library={"ours": Path(path)})


@pytest.mark.parametrize("name", ["codes", "x" * 5000, "a\0b"])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(TraceError, match=r"is not one of conversation, code.*, and there is no such file$"):
        load(name, 1, seed=0, allow_paths=True)


def test_a_trace_with_too_few_requests_names_both_numbers(trace):
    with pytest.raises(TraceError, match=r"^t.csv: holds 2 requests, and 1,000 are asked for$"):
        load(str(trace(PLAIN)), 1000, seed=0, allow_paths=True)


# Lengths

REQUESTS = [Request(0.0, 10, 2), Request(1.5, 20, 3)]


def test_lengths_can_be_overridden_one_by_one():
    assert with_lengths(REQUESTS, prompt_tokens=7) == [Request(0.0, 7, 2), Request(1.5, 7, 3)]
    assert with_lengths(REQUESTS, output_tokens=1) == [Request(0.0, 10, 1), Request(1.5, 20, 1)]
    assert with_lengths(REQUESTS) == REQUESTS


def test_the_longest_sequence_counts_prompt_and_output():
    assert longest_sequence(REQUESTS) == 23
    assert longest_sequence([]) == 0


# Prefixes


def test_prefixes_are_the_hashes_of_mooncakes_blocks(trace):
    path = trace(
        '\n{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n\n'
        '{"timestamp": 1, "input_length": 512, "output_length": 5, "hash_ids": [0, 7, 9]}\n'
    )
    assert read_prefixes(path, 1) == [[0, 1]]
    assert read_prefixes(path, 9) == [[0, 1], [0, 7, 9]]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (PLAIN, "mine: names no prefixes; only Mooncake's JSON lines do, as hash_ids"),
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 5}\n',
            "mine, line 1: hash_ids is None; it must be a list of whole numbers",
        ),
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, "1"]}\n',
            "mine, line 1: hash_ids is [0, '1']; it must be a list of whole numbers",
        ),
        (
            '\n{"timestamp": 0, "input_length": 1025, "output_length": 5, "hash_ids": [0, 1]}\n',
            "mine, line 2: has 2 hash_ids; its prompt of 1,025 tokens has 3 blocks of 512",
        ),
        ("", "mine: is empty"),
    ],
)
def test_a_trace_without_usable_prefixes_says_why(trace, content, sentence):
    with pytest.raises(TraceError) as caught:
        read_prefixes(trace(content), 5, "mine")
    assert str(caught.value) == sentence
