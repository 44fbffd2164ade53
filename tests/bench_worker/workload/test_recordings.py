"""Recordings of expert load: every form that is read, what is refused, and what is left out."""

import io
import json
import pickle
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_worker.workload import recording_files
from bench_worker.workload.recordings import RecordingError, from_counts, from_ids, read_recording, write_recording

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "routing"
IDS = np.array([[[0, 1], [2, 3]], [[1, 2], [0, 3]], [[3, 0], [1, 2]]])


def shared(name):
    if not DATA.is_dir():
        pytest.skip("the recordings of ../shared/data/routing aren't here")
    return read_recording(DATA / name)


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def read(tmp_path, data, **options):
    path = tmp_path / "load"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_recording(path, **options)


@pytest.mark.parametrize(
    ("name", "layers", "experts", "top_k", "tokens", "assignments"),
    [
        ("esft_dsv2lite_intent_topk_ids.npz", 26, 64, 6, 8222, 8222 * 26 * 6),
        ("esft_dsv2lite_summary_topk_ids.npz", 26, 64, 6, 8479, 8479 * 26 * 6),
        ("gptoss20b_decode_topk_ids.npz", 24, 32, 4, 4325, 4325 * 24 * 4),
        ("olmoe_repo_olmoe_expert_counts.json#arxiv", 3, 64, 8, None, 5_013_504),
        ("olmoe_repo_mistral_expert_counts.json#c4", 3, 8, 2, None, 1_253_376),
        ("e4b_qwen3_30b_a3b_g3.csv", 48, 128, None, None, 48 * 768),
    ],
)
def test_published_recordings_are_read_whole(name, layers, experts, top_k, tokens, assignments):
    recording = shared(name)
    assert (len(recording.layers), recording.num_experts, recording.top_k) == (layers, experts, top_k)
    assert (None if recording.ids is None else len(recording.ids)) == tokens
    assert recording.counts.sum() == assignments
    assert recording.dropped_rows == 0  # prompts that begin alike are no profiling pass


def test_the_hottest_expert_of_olmoe_on_arxiv_has_its_published_load():
    shares = shared("olmoe_repo_olmoe_expert_counts.json#arxiv").shares
    assert shares[0].max() * 64 == pytest.approx(7.81, abs=0.005)


@pytest.mark.parametrize("name", ["gptoss20b_decode_topk_ids.npz", "olmoe_repo_olmoe_expert_counts.json#book"])
def test_the_compact_form_gives_back_the_same(name, tmp_path):
    recording = shared(name)
    write_recording(tmp_path / "kept.npz", recording)
    again = read_recording(tmp_path / "kept.npz")
    for field in ("counts", "ids", "layers", "lengths"):
        np.testing.assert_equal(getattr(again, field), getattr(recording, field))
    assert (again.top_k, again.dropped_rows) == (recording.top_k, recording.dropped_rows)
    assert (tmp_path / "kept.npz").stat().st_size < 300_000


def test_counts_of_ids_are_theirs():
    recording = from_ids(IDS)
    assert recording.counts.tolist() == [[2, 2, 1, 1], [1, 1, 2, 2]]
    assert recording.lengths.tolist() == [3]
    assert recording.described() == "2 layers of 4 experts, 3 tokens one by one"


def test_a_recording_is_known_by_what_it_replays_and_not_by_its_file(tmp_path):
    counted, tokens = from_counts(np.array([[3, 1]]), 1), from_ids(IDS)
    assert len(counted.content_hash) == 64
    for recording in (counted, tokens):
        write_recording(tmp_path / "kept.npz", recording)
        assert read_recording(tmp_path / "kept.npz").content_hash == recording.content_hash
    others = [
        counted, from_counts(np.array([[3, 1]])), from_counts(np.array([[1, 3]]), 1),
        from_counts(np.array([[3, 1]]), 1, np.array([7])), from_counts(np.array([[3], [1]]), 1),
        tokens, from_ids(IDS, np.array([1, 2])), from_ids(IDS, num_experts=5), from_ids(IDS[::-1].copy()),
        from_counts(tokens.counts, tokens.top_k),
    ]  # fmt: skip
    assert len({other.content_hash for other in others}) == len(others)


def test_rows_that_a_profiling_pass_repeats_are_left_out_and_counted():
    generator = np.random.default_rng(0)
    real = np.argsort(generator.random((300, 2, 8)), axis=2)[:, :, :3]
    shuffled = np.repeat(real[:1], 3000, axis=0)
    shuffled[::2] = shuffled[::2, :, ::-1]  # the same experts in another order
    ids = np.concatenate([real[:100], shuffled, real[100:]])
    recording = from_ids(ids, np.array([100, 3000, 150, 50]))
    assert recording.dropped_rows == 3000
    np.testing.assert_equal(recording.ids, real)
    assert recording.lengths.tolist() == [100, 150, 50]
    assert recording.counts.sum() == 300 * 2 * 3


def test_a_prompt_that_many_requests_share_is_no_profiling_pass():
    prompt = np.argsort(np.random.default_rng(1).random((20, 2, 8)), axis=2)[:, :, :2]
    assert from_ids(np.tile(prompt, (200, 1, 1))).dropped_rows == 0


def test_layers_without_any_count_are_left_out():
    recording = from_counts(np.array([[0, 0], [3, 1], [0, 0], [2, 2]]))
    assert recording.layers.tolist() == [1, 3]
    assert recording.counts.tolist() == [[3, 1], [2, 2]]


@pytest.mark.parametrize(
    "text",
    [
        "layer,expert,count\n0,0,3\n0,1,1\n2,1,4\n",
        "layer_id,expert_id,tokens_routed\n2,1,4\n0,1,1\n\n0,0,3\n",
        '{"layers": [0, 2], "counts": [[3, 1], [0, 4]]}',
        '{"layers": [0, 2], "num_experts": 2, "domains": {"only": [[3, 1], [0, 4]]}}',
    ],
)
def test_tables_of_counts_are_read_from_csv_and_json(text, tmp_path):
    recording = read(tmp_path, text)
    assert recording.counts.tolist() == [[3, 1], [0, 4]]
    assert recording.layers.tolist() == [0, 2]


@pytest.mark.parametrize(
    "lines",
    [
        "\n".join(json.dumps(row) for row in IDS.tolist()),
        "\n\n".join(json.dumps({"experts": row}) for row in IDS.tolist()),
        "\n".join(json.dumps({"topk_ids": row, "sequence": "a"}) for row in IDS.tolist()),
    ],
)
def test_tokens_are_read_from_json_lines(lines, tmp_path):
    recording = read(tmp_path, lines)
    np.testing.assert_equal(recording.ids, IDS)
    assert recording.lengths.tolist() == [3]


def test_json_lines_may_have_several_sequences_and_a_single_layer(tmp_path):
    lines = '{"experts": [0, 1], "sequence": 1}\n{"experts": [1, 2], "sequence": 1}\n{"experts": [0, 2], "sequence": 2}'
    recording = read(tmp_path, lines)
    assert recording.ids.shape == (3, 1, 2)
    assert recording.lengths.tolist() == [2, 1]


def test_the_number_of_experts_can_be_given_where_the_last_were_never_chosen(tmp_path):
    assert read(tmp_path, json.dumps(IDS.tolist()[0])).num_experts == 4
    assert read(tmp_path, json.dumps(IDS.tolist()[0]), num_experts=8).num_experts == 8
    assert read(tmp_path, "layer,expert,count\n0,1,3\n", num_experts=8).counts.shape == (1, 8)


@pytest.mark.parametrize(
    ("experts", "top_k", "sentence"),
    [
        (4, 2, None),
        (8, 2, "holds 4 experts; some-model has 8"),
        (4, 1, "holds 2 experts a token; some-model takes 1"),
    ],
)
def test_a_recording_of_another_model_is_found_out(experts, top_k, sentence):
    assert from_ids(IDS).misfit(experts, top_k, "some-model") == sentence


def test_a_share_above_one_in_k_is_found_out():
    counts = from_counts(np.array([[5, 5, 5, 5], [11, 3, 3, 3]]), layers=np.array([4, 9]))
    assert counts.misfit(4, 1, "some-model") is None
    assert counts.misfit(4, 2, "some-model") == (
        "gives expert 0 of layer 9 55.0% of the assignments; at 2 experts a token, as in some-model, none can have "
        "more than 50.0%"
    )


COUNT = "whole number from 0 to 1,000,000,000,000,000"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "load: is empty"),
        (b" \n", "load: is empty"),
        (b"\xff\xfe\x00binary", "load: is neither an .npz file nor UTF-8 text (byte 0)"),
        (b"\x00\x01", "load: is neither an .npz file nor text"),
        (b"PK\x03\x04garbage", "load: is no whole .npz file (File is not a zip file)"),
        (npz(ids=IDS)[:200], "load: is no whole .npz file (File is not a zip file)"),
        (npz(weights=IDS), "load: holds neither ids nor counts; it has weights"),
        (npz(ids=IDS[0]), "load: ids are int64 [2, 2]; they must be whole numbers [tokens, layers, experts a token]"),
        (npz(ids=IDS.astype(float)), "load: ids are float64 [3, 2, 2]; they must be whole numbers [tokens, layers, "
                                     "experts a token]"),
        (npz(ids=IDS - 1), "load: an id is -1; ids go from 0 to 2"),
        (npz(ids=IDS, num_experts=3), "load: an id is 3; ids go from 0 to 2"),
        (npz(ids=IDS * 5000), "load: an id is 15000; ids go from 0 to 4095"),
        (npz(ids=np.zeros((2, 1, 2), int)), "load: token 0 has expert 0 twice in layer 0"),
        (npz(ids=IDS, seq_lens=[1, 1]), "load: the sequences' lengths don't sum to the 3 tokens"),
        (npz(ids=IDS, layers=[1]), "load: layers are int64 [1]; there must be one number for each of 2"),
        (npz(ids=np.tile(IDS[:1], (500, 1, 1))), "load: all 500 rows repeat one another, as in a profiling pass"),
        (npz(counts=[[0.5, 0.5]]), "load: counts are float64 [1, 2]; they must be whole numbers [layers, experts]"),
        (npz(counts=[[3, -1]]), "load: a count is -1; counts go from 0 to 1,000,000,000,000,000"),
        (npz(counts=[[0, 0]]), "load: all counts are 0"),
        (npz(counts=[[1, 1]], top_k=3), "load: top_k 3 is not between 1 and the 2 experts"),
        (npz(counts=[[1, 1]], num_experts=1), "load: has counts of 2 experts, and says 1"),
        (npz(names=np.array([{}], dtype=object)), "load: holds an array of object; only numbers are read"),
        ('{"a": 1}', "load: is no JSON object with counts or domains"),
        ('{"counts": ', "load: is no JSON object with counts or domains"),
        ("[" * 100_000, "load: is no JSON object with counts or domains"),
        ('{"counts": [1, 2]}', "load: counts are [1, 2]; they must be a list of lists, [layers][experts]"),
        ('{"counts": [[1, 2], [1]]}', "load: row 1 has 1 counts, and the first has 2"),
        ('{"counts": [[1, 2.5]]}', f"load: row 0, expert 1 is 2.5; a count is a {COUNT}"),
        ('{"counts": [[1, true]]}', f"load: row 0, expert 1 is True; a count is a {COUNT}"),
        ('{"counts": [[1]], "top_k": "2"}', "load: top_k is '2'; it must be a whole number"),
        ('{"counts": [[1]], "layers": 4}', "load: layers are 4; they must be a list of whole numbers"),
        ('{"domains": []}', "load: domains are no JSON object of tables by name"),
        ('{"domains": {"a": [[1]], "b": [[1]]}}', "load: holds 2 domains; name one of a, b, as in load#a"),
        ("a,b,c\n", "load, line 1: 'a,b,c' starts no known recording; known are layer,expert,count (CSV), JSON with "
                    "counts or domains, JSON lines of experts, and .npz"),
        ("layer,expert,count\n", "load: has a header and no rows"),
        ("layer,expert,count\n0,1\n", "load, line 2: has 2 columns; it must have 3"),
        ("layer,expert,count\n0,x,1\n", f"load, line 2: expert is 'x'; it must be a {COUNT}"),
        ("layer,expert,count\n0,1,-1\n", f"load, line 2: count is '-1'; it must be a {COUNT}"),
        ("layer,expert,count\n0,1,1\n0,1,2\n", "load, line 3: layer 0, expert 1 stands there twice"),
        ("layer,expert,count\n0,999999,1\n", "load: an expert is 999999; no model has so many"),
        ("[[0, 1]]\nnonsense", "load, line 2: 'nonsense' is not a token's experts, a list for each layer"),
        ("[[0, 1]]\n[[0]]", "load, line 2: has other numbers of layers or experts than the first token"),
        ("[[0, 1], [2]]", "load: a token has not the same number of experts in all layers"),
        ("[[0, -1]]", "load, line 1: '[[0, -1]]' is not a token's experts, a list for each layer"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_recording_gets_one_sentence(data, sentence, tmp_path):
    with pytest.raises(RecordingError) as caught:
        read(tmp_path, data)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"ids": IDS, "num_experts": 10**12}, "1000000000000 experts are not allowed; from 1 to 4,096 are read"),
        ({"counts": [[1, 2]], "num_experts": 0}, "0 experts are not allowed; from 1 to 4,096 are read"),
        ({"ids": IDS, "num_experts": "many"}, "num_experts is 'many'; it must be a whole number from 0"),
        ({"counts": [[1, 2]], "top_k": 1.5}, "top_k is 1.5; it must be a whole number from 0"),
        ({"counts": [[1, 2]], "dropped_rows": -1}, "dropped_rows is -1; it must be a whole number from 0"),
        ({"ids": 7}, "ids are 7; they must be an array"),
        ({"counts": "some"}, "counts are 'some'; they must be an array"),
    ],
)
def test_values_of_another_kind_get_one_sentence(arrays, sentence, tmp_path):
    with pytest.raises(RecordingError, match=f"^load: {re.escape(sentence)}$"):
        read(tmp_path, npz(**arrays))


@pytest.mark.parametrize("experts", [-1, 0, 5000])
def test_a_number_of_experts_that_no_model_has_is_refused(experts, tmp_path):
    with pytest.raises(RecordingError, match=f"^load: {experts} experts are not allowed; from 1 to 4,096 are read$"):
        read(tmp_path, "layer,expert,count\n0,0,1\n", num_experts=experts)


def test_a_file_that_is_not_there_or_no_file_gets_one_sentence(tmp_path):
    for path, sentence in ((tmp_path / "x", "x: there is no such file"), (tmp_path, f"{tmp_path.name}: is a folder; "
                           "a recording is a file"), (Path("/dev/zero"), "zero: is not a regular file")):  # fmt: skip
        with pytest.raises(RecordingError) as caught:
            read_recording(path)
        assert str(caught.value) == sentence


def test_a_domain_must_be_one_of_the_files_and_only_files_with_domains_have_them(tmp_path):
    (tmp_path / "d.json").write_text('{"domains": {"books": [[1, 2]]}}')
    assert read_recording(tmp_path / "d.json#books").counts.tolist() == [[1, 2]]
    with pytest.raises(RecordingError, match=r"^d\.json: domain 'book' is not one of books \(did you mean books\?\)$"):
        read_recording(tmp_path / "d.json#book")
    (tmp_path / "c.csv").write_text("layer,expert,count\n0,0,1\n")
    with pytest.raises(RecordingError, match=r"^c\.csv: has no domains, and 'book' is asked for$"):
        read_recording(tmp_path / "c.csv#book")


class Hostile:
    def __reduce__(self):
        return (pytest.fail, ("a pickled object was made",))


def test_pickled_objects_are_never_made(tmp_path):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        archive.writestr("ids.npy", header.getvalue() + pickle.dumps([Hostile()]))
    with pytest.raises(RecordingError, match="load: holds an array of object; only numbers are read"):
        read(tmp_path, file.getvalue())


def test_a_file_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(recording_files, "MAX_BYTES", 10_000)
    data = npz(counts=np.zeros((100, 1000), np.int64))  # under 2 kB packed
    with pytest.raises(
        RecordingError, match=r"load: unpacks to 1 entries of 800,128 bytes; at most 64 of 10,000 bytes"
    ):
        read(tmp_path, data)
    with pytest.raises(RecordingError, match=r"load: has more than 10,000 bytes, the most that are read"):
        read(tmp_path, b"x" * 10_001)


def test_an_array_that_claims_to_be_larger_than_it_is_is_refused_before_it_is_made(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (10**12, 4)})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("counts.npy", header.getvalue() + struct.pack("<q", 1))
    with pytest.raises(RecordingError, match=r"load: holds an array of \[1000000000000, 4\] int64 in 8 bytes"):
        read(tmp_path, file.getvalue())


def refusal(path):
    """What is said of a file that is no recording; nothing of one."""
    try:
        read_recording(path)
    except RecordingError as error:
        return str(error)
    return ""


@given(st.binary(max_size=300), st.sampled_from([b"", b"PK\x03\x04", b"{", b"[", b"layer,expert,count\n"]))
def test_no_bytes_at_all_do_anything_but_make_a_recording_or_one_sentence(tmp_path_factory, data, start):
    path = tmp_path_factory.mktemp("hostile") / "load"
    path.write_bytes(start + data)
    assert "\n" not in refusal(path)


@given(st.integers(0, 1500), st.integers(0, 255))
def test_a_damaged_file_is_one_sentence_or_still_a_recording(tmp_path_factory, place, value):
    data = bytearray(npz(ids=IDS, seq_lens=[3], num_experts=4))
    data[place % len(data)] = value
    path = tmp_path_factory.mktemp("damaged") / "load"
    path.write_bytes(bytes(data))
    assert "\n" not in refusal(path)
