"""Importing a recording of expert load: every form, by the measuring program, within limits."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from django.core.management import CommandError, call_command

from bench_worker.workload.recordings import RecordingError, from_ids, read_recording, write_recording
from webapp import guard
from webapp.guard import End
from webapp.traces import recording_store
from webapp.traces.models import Recording
from webapp.traces.recording_store import import_recording, loads_of, models_for, recording_files
from webapp.traces.store import traces_library

pytestmark = pytest.mark.django_db
DATA = Path(__file__).parents[3] / ".." / "shared" / "data" / "routing"
CSV = "layer,expert,count\n1,0,30\n1,1,10\n3,0,5\n3,1,5\n"
IDS = np.array([[[0, 1], [2, 3]], [[1, 2], [0, 3]], [[3, 0], [1, 2]]])


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def saved(path: Path, dump: Any) -> Path:
    torch.save(dump, path)
    return path


@pytest.fixture
def shared() -> Path:
    if not DATA.is_dir():
        pytest.skip("needs the published recordings in ../shared/data")
    return DATA


def test_counts_are_kept_with_their_figures(tmp_path: Path, member: Any) -> None:
    made, is_new = import_recording([write(tmp_path / "My load.csv", CSV)], by=member)
    made.refresh_from_db()
    assert is_new
    assert (made.name, made.source_file, made.created_by) == ("my-load", "My load.csv", member)
    assert (made.layers, made.num_experts, made.top_k, made.num_tokens, made.num_sequences) == (
        [1, 3], 2, None, None, None
    )  # fmt: skip
    assert made.count_table.tolist() == [[30, 10], [5, 5]]
    assert (made.imbalance, made.dropped_rows) == ([1.5, 1.0], 0)
    assert made.summary == "2 layers of 2 experts, counted"


def test_tokens_come_back_as_the_measuring_program_reads_them(tmp_path: Path) -> None:
    recorded = from_ids(IDS, np.array([1, 2]))
    write_recording(tmp_path / "tokens.npz", recorded)
    made, _ = import_recording([tmp_path / "tokens.npz"])
    assert (made.num_tokens, made.num_sequences, made.top_k, made.num_experts) == (3, 2, 2, 4)
    assert made.summary == "2 layers of 4 experts, 3 tokens one by one"
    out = tmp_path / "out"
    out.mkdir()
    again = read_recording(recording_files([made], out)["tokens"])
    assert again.content_hash == recorded.content_hash == made.content_hash
    np.testing.assert_equal(again.ids, IDS)
    assert traces_library().recordings == {"tokens"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '{"counts": [[3, 1], [2, 2]], "top_k": 1}'),
        ("a.json", '{"domains": {"only": [[3, 1], [2, 2]]}, "top_k": 1}'),
        ("a.jsonl", "[[0, 1], [1, 0]]\n[[1, 0], [0, 1]]\n"),
        ("a.csv", "layer_id,expert_id,tokens_routed\n0,0,3\n0,1,1\n1,0,2\n1,1,2\n"),
    ],
)
def test_every_text_form_is_read(tmp_path: Path, name: str, content: str) -> None:
    made, _ = import_recording([write(tmp_path / name, content)])
    assert (made.name, made.num_layers, made.num_experts) == ("a", 2, 2)


def test_sglangs_dumps_of_all_ranks_make_one_recording(tmp_path: Path) -> None:
    logical = torch.tensor([[0, 1, 2, 2], [2, 0, 1, 2]])
    files = [
        saved(tmp_path / f"rank_{rank}.pt", {
            "records": [{"forward_pass_id": 1, "rank": rank, "gatherer_key": "primary",
                         "global_physical_count": torch.full((2, 4), rank + 1)}],
            "last_physical_to_logical_map": logical,
        }) for rank in range(2)
    ]  # fmt: skip
    made, _ = import_recording(files)
    assert made.name == "rank_0"
    assert made.count_table.tolist() == [[3, 3, 6], [3, 3, 6]]


def test_one_domain_of_a_file_is_named_after_its_path(tmp_path: Path) -> None:
    file = write(tmp_path / "olmoe.json", '{"domains": {"arxiv": [[3, 1]], "c4": [[1, 3]]}}')
    with pytest.raises(RecordingError, match=r"^olmoe\.json: holds 2 domains; name one of arxiv, c4, as in"):
        import_recording([file])
    made, _ = import_recording([Path(f"{file}#c4")])
    assert (made.name, made.source_file, made.count_table.tolist()) == ("olmoe-c4", "olmoe.json#c4", [[1, 3]])


def test_the_experts_that_were_never_chosen_can_be_counted_in(tmp_path: Path) -> None:
    made, _ = import_recording([write(tmp_path / "a.csv", CSV)], num_experts=64)
    assert made.num_experts == 64


def test_the_same_load_again_is_the_same_entry(tmp_path: Path) -> None:
    first, _ = import_recording([write(tmp_path / "a.csv", CSV)])
    again, is_new = import_recording(
        [write(tmp_path / "b.csv", CSV.replace("layer,expert,count", "layer_id,expert_id,tokens_routed"))]
    )
    assert (again, is_new) == (first, False)
    assert Recording.objects.count() == 1


def test_a_taken_name_is_refused(tmp_path: Path) -> None:
    import_recording([write(tmp_path / "a.csv", CSV)])
    with pytest.raises(RecordingError, match="'a' is taken by another recording"):
        import_recording([write(tmp_path / "other.csv", CSV.replace("30", "31"))], name="a")


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "x" * 101])
def test_a_name_that_is_no_slug_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordingError, match="it must have 1 to 100 lower-case letters"):
        import_recording([tmp_path / "never read"], name=name)


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


def pickled() -> bytes:
    file = io.BytesIO()
    np.savez(file, ids=np.array([Hostile()], dtype=object))
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "a.npz: is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "a.npz: is neither an .npz file nor UTF-8 text (byte 0)"),
        (b"PK\x03\x04 and no more", "a.npz: is no whole .npz file (File is not a zip file)"),
        (pickled(), "a.npz: holds an array of object; only numbers are read"),
        (pickle.dumps(Hostile()), "a.npz: is neither an .npz file nor UTF-8 text (byte 0)"),
        (b"layer,expert,count\n0,0,1.5\n",
         "a.npz, line 2: count is '1.5'; it must be a whole number from 0 to 1,000,000,000,000,000"),
        (b"layer,expert,count\n0,0,-1\n",
         "a.npz, line 2: count is '-1'; it must be a whole number from 0 to 1,000,000,000,000,000"),
        (b"layer,expert,count\r\n0,0,1\r0,0,1\n", "a.npz, line 3: layer 0, expert 0 stands there twice"),
        (b'{"counts": [[1, 2], [3]]}', "a.npz: row 1 has 1 counts, and the first has 2"),
        (b'{"counts": [[1, 2]', "a.npz: is no JSON object with counts or domains"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_recording_gets_the_command_lines_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("import_recording", str(write(tmp_path / "a.npz", content)))
    assert (str(refused.value), refused.value.returncode) == (sentence, 2)
    assert not Recording.objects.exists()


@pytest.mark.parametrize(
    ("stopped", "sentence"),
    [
        ("memory", "a.csv: takes more than 2.00 GB of memory to read, the most that an import may take"),
        ("time", "a.csv: takes more than 120 s to read, the most that an import may take"),
    ],
)
def test_a_file_that_takes_too_much_ends_its_reader_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: str, sentence: str
) -> None:
    monkeypatch.setattr(guard, "hold", lambda command, limits: (End(-9, stopped), "half a line"))
    with pytest.raises(RecordingError) as refused:
        import_recording([write(tmp_path / "a.csv", CSV)])
    assert str(refused.value).replace("\N{NO-BREAK SPACE}", " ") == sentence
    assert not Recording.objects.exists()


def test_a_reader_that_fails_by_itself_is_told_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_store.sys, "executable", "/bin/false")
    with pytest.raises(RecordingError, match=r"^a\.csv: the program that reads recordings failed: it said nothing$"):
        import_recording([write(tmp_path / "a.csv", CSV)])


def test_a_recording_too_large_to_keep_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_store, "MAX_BYTES", 10)
    with pytest.raises(RecordingError, match=r"^a\.csv: takes .*; an entry may have at most 10\sB$"):
        import_recording([write(tmp_path / "a.csv", CSV)])


def test_without_torch_a_dump_is_refused_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine of the team that serves pages."""
    (tmp_path / "nothing").mkdir()
    write(tmp_path / "nothing" / "torch.py", "raise ModuleNotFoundError('No module named torch', name='torch')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nothing"))
    file = saved(tmp_path / "dump.pt", {"logical_count": torch.ones(1, 2, 4, dtype=torch.int32)})
    with pytest.raises(RecordingError, match=r"^dump\.pt: was written with torch\.save, and only a machine with torch"):
        import_recording([file])
    assert import_recording([write(tmp_path / "a.csv", CSV)])[1]


def test_it_knows_the_models_that_it_fits(shared: Path) -> None:
    tokens, _ = import_recording([shared / "esft_dsv2lite_intent_topk_ids.npz"])
    counted, _ = import_recording([Path(f"{shared / 'olmoe_repo_olmoe_expert_counts.json'}#arxiv")])
    assert "olmoe-1b-7b" in models_for(counted)
    assert "olmoe-1b-7b" not in models_for(tokens)  # 64 experts too, but 6 a token
    assert set(loads_of({counted.name, "none"})) == {counted.name}
    assert max(counted.imbalance) == pytest.approx(7.81, abs=0.005)


# The command


def test_the_command_says_what_it_kept(tmp_path: Path, capsys: Any) -> None:
    file = write(tmp_path / "a.jsonl", "[[0, 1]]\n" * 5 + "[[2, 1]]\n" + "[[0, 3]]\n" * 70)
    call_command("import_recording", str(file), "--name", "mine", "--experts", "8")
    assert capsys.readouterr().out == (
        "mine: 1 layer of 8 experts, 6 tokens one by one\n70 rows of a profiling pass were left out.\n"
    )
    call_command("import_recording", str(file), "--experts", "8")
    assert capsys.readouterr().out == "a.jsonl: the same load is already here as mine\n"
