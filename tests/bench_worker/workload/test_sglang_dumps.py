"""Dumps of SGLang's expert recorder: counts, passes and tokens, summed over ranks, and never unpickled."""

import pickle

import numpy as np
import pytest
import torch

from bench_worker.workload import sglang_dumps
from bench_worker.workload.recording_files import RecordingError, is_dump
from bench_worker.workload.recordings import read_recording
from bench_worker.workload.sglang_dumps import read_dumps

#: Two layers, three logical experts, the last of which has a second copy.
LOGICAL = torch.tensor([[0, 1, 2, 2], [2, 0, 1, 2]])


def saved(tmp_path, *dumps):
    paths = []
    for rank, dump in enumerate(dumps):
        paths.append(tmp_path / f"expert_distribution_recorder_{rank}.pt")
        torch.save(dump, paths[-1])
    return paths


def passes(*records):
    return {"records": list(records), "last_physical_to_logical_map": LOGICAL}


def one_pass(number, rank, count, **more):
    return {"forward_pass_id": number, "rank": rank, "gatherer_key": "primary",
            "global_physical_count": torch.tensor(count, dtype=torch.int32), **more}  # fmt: skip


def test_counts_are_summed_over_the_buffered_steps_and_empty_layers_left_out(tmp_path):
    count = torch.zeros(10, 3, 4, dtype=torch.int32)
    count[0, 1], count[7, 1], count[7, 2] = torch.tensor([1, 2, 0, 0]), torch.tensor([0, 1, 5, 0]), torch.ones(4)
    made = read_dumps(
        saved(tmp_path, {"rank": 0, "logical_count": count, "average_utilization_rate_over_window": None})
    )
    assert made.counts.tolist() == [[1, 3, 5, 0], [1, 1, 1, 1]]
    assert made.layers.tolist() == [1, 2]
    assert made.top_k is None


def test_passes_are_summed_over_ranks_and_over_copies_of_an_expert(tmp_path):
    first = passes(one_pass(0, 0, [[1, 2, 3, 4], [1, 0, 0, 0]]), one_pass(1, 0, [[1, 0, 0, 0], [0, 0, 0, 5]]))
    second = passes(one_pass(0, 1, [[0, 0, 0, 10], [0, 7, 0, 0]]))
    made = read_dumps(saved(tmp_path, first, second))
    assert made.counts.tolist() == [[2, 2, 17], [7, 0, 6]]


def test_tokens_are_kept_with_their_logical_experts(tmp_path):
    # Physical ids of two of 8 places; rank 0 computes prompts of 2 and 1 tokens, then decodes; −1 is padding.
    def ids(*tokens):  # tokens × layers × k -> layers × tokens × 8
        made = torch.full((2, len(tokens), 8), -1, dtype=torch.int32)
        made[:, :, :2] = torch.tensor(tokens).permute(1, 0, 2)
        return made

    count = [[0] * 4] * 2
    prompts = one_pass(0, 0, count, extend_seq_lens=[2, 1],
                       topk_ids_of_layer=ids([[0, 1], [0, 1]], [[1, 3], [2, 3]], [[0, 2], [1, 0]]))  # fmt: skip
    decode = one_pass(1, 0, count, extend_seq_lens=None, topk_ids_of_layer=ids([[3, 0], [3, 2]], [[-1, -1], [-1, -1]]))
    made = read_dumps(saved(tmp_path, passes(prompts, decode)))
    assert made.ids.tolist() == [[[0, 1], [2, 0]], [[1, 2], [1, 2]], [[0, 2], [0, 2]], [[2, 0], [2, 1]]]
    assert made.lengths.tolist() == [2, 1, 1]
    assert (made.num_experts, made.top_k) == (3, 2)


def test_layers_that_were_never_recorded_are_left_out_of_the_tokens(tmp_path):
    ids = torch.full((2, 3, 8), -1, dtype=torch.int32)
    ids[1, :, 0] = torch.tensor([0, 1, 2])
    made = read_dumps(saved(tmp_path, passes(one_pass(0, 0, [[0] * 4] * 2, topk_ids_of_layer=ids))))
    assert made.layers.tolist() == [1]
    assert made.ids.tolist() == [[[2]], [[0]], [[1]]]


class Hostile:
    def __reduce__(self):
        return (pytest.fail, ("a pickled object was made",))


COUNT = torch.ones(2, 4, dtype=torch.int32)


@pytest.mark.parametrize(
    ("dump", "sentence"),
    [
        ({"weights": COUNT}, "is no dump of SGLang's recorder; it has neither logical_count nor records"),
        ([COUNT], "is no dump of SGLang's recorder; it has neither logical_count nor records"),
        ({"logical_count": 3}, "logical_count is no tensor with 2 or 3 dimensions"),
        ({"logical_count": COUNT.float()},
         r"logical_count is \[2, 4\] torch.float32; it must hold 1 to 100,000,000 whole"),
        ({"logical_count": torch.ones(1, dtype=torch.int32).expand(10**5, 10**5)},
         "logical_count is .* it must hold 1 to"),
        ({"logical_count": -COUNT}, "a count is -1; counts go from 0 to"),
        ({"logical_count": 0 * COUNT}, "all counts are 0"),
        (passes(), r"records are \[\]; they must be a list of passes"),
        ({"records": [one_pass(0, 0, [[1] * 4] * 2)]}, "last_physical_to_logical_map is no tensor with 2 dimensions"),
        (passes(one_pass(0, 0, [[1] * 3] * 2)), r"global_physical_count is \[2, 3\], and the map \[2, 4\]"),
        ({**passes(one_pass(0, 0, [[1] * 4] * 2)), "last_physical_to_logical_map": LOGICAL + 2},
         "last_physical_to_logical_map names experts that there are not"),
        (passes(one_pass(0, 0, [[1] * 4] * 2, topk_ids_of_layer=torch.full((2, 3, 8), 9))),
         "topk_ids_of_layer names layers or experts that the map has not"),
        (passes(one_pass(0, 0, [[1] * 4] * 2, topk_ids_of_layer=torch.full((2, 3, 8), -1))),
         "no token has experts in all layers"),
    ],
)  # fmt: skip
def test_what_is_no_dump_gets_one_sentence(tmp_path, dump, sentence):
    with pytest.raises(RecordingError, match=sentence) as caught:
        read_dumps(saved(tmp_path, dump))
    assert str(caught.value).startswith("expert_distribution_recorder_0.pt: ")


def test_a_pickled_object_is_refused_and_not_made(tmp_path):
    path = tmp_path / "load.pt"
    torch.save({"logical_count": Hostile()}, path)
    with pytest.raises(RecordingError, match=r"^load\.pt: is no whole dump of SGLang's recorder \("):
        read_dumps([path])


@pytest.mark.parametrize("data", [b"", b"no zip", pickle.dumps([Hostile()]), b"PK\x03\x04 truncated"])
def test_bytes_that_are_no_dump_get_one_sentence(tmp_path, data):
    path = tmp_path / "load.pt"
    path.write_bytes(data)
    assert not is_dump(path)
    with pytest.raises(RecordingError, match=r"^load\.pt: is (empty|no whole dump)"):
        read_dumps([path])


def test_a_truncated_dump_gets_one_sentence(tmp_path):
    (path,) = saved(tmp_path, {"logical_count": COUNT})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(RecordingError, match="is no whole dump of SGLang's recorder"):
        read_dumps([path])


def test_a_dump_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    (path,) = saved(tmp_path, {"logical_count": COUNT})
    monkeypatch.setattr(sglang_dumps, "MAX_BYTES", 100)
    with pytest.raises(RecordingError, match=r"unpacks to .* bytes; at most 100 are read"):
        read_dumps([path])


def test_counts_and_passes_do_not_mix(tmp_path):
    paths = saved(tmp_path, {"logical_count": COUNT}, passes(one_pass(0, 0, [[1] * 4] * 2)))
    with pytest.raises(RecordingError, match="counts and records are different recordings"):
        read_dumps(paths)


def test_ranks_with_other_layers_do_not_belong_together(tmp_path):
    paths = saved(tmp_path, {"logical_count": COUNT}, {"logical_count": COUNT[:1]})
    with pytest.raises(RecordingError, match="the files have different numbers of layers or experts"):
        read_dumps(paths)


def test_an_experiment_that_names_a_dump_is_told_how_to_make_a_recording_of_it(tmp_path):
    (path,) = saved(tmp_path, {"logical_count": COUNT})
    assert is_dump(path)
    with pytest.raises(RecordingError, match=r"is a file of torch\.save; .* python -m bench_worker recording FILE\.pt"):
        read_recording(path)


def test_a_large_dump_of_counts_sums_without_overflow(tmp_path):
    count = torch.full((3, 1, 2), 2**31 - 1, dtype=torch.int32)
    assert read_dumps(saved(tmp_path, {"logical_count": count})).counts.tolist() == [[3 * (2**31 - 1)] * 2]
    assert np.iinfo(np.int64).max > 3 * 2**31
