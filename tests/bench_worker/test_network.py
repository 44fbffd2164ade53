"""What stands around the MoE layers, whole and divided among the ranks of a group."""

import pytest
import torch

from bench_worker import models
from bench_worker.layer import dense
from bench_worker.network import Around, Network
from bench_worker.planning import network_key
from bench_worker.spec import Spec
from bench_worker.weights import Weights

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def whole(request, tiny_config):
    """A vocabulary of 10 and a dense FFN of width 6, which four ranks can't divide evenly."""
    model = models.load(str(tiny_config), allow_paths=True).model_copy(
        update={"vocab": 10, "dense_layers": 1, "dense_intermediate": 6, "tied_embeddings": request.param}
    )
    return Around(model, 1, Weights(torch.float32, CPU, seed=1))


@pytest.mark.parametrize("members", [2, 4])
def test_embeddings_and_dense_outputs_of_the_parts_sum_to_the_whole(whole, members):
    parts = [whole.shard(member, members) for member in range(members)]
    token_ids = torch.tensor([0, 9, 3, 3, 7])
    hidden = whole.embed(token_ids)
    assert torch.equal(sum(part.embed(token_ids) for part in parts), hidden)
    assert torch.allclose(sum(dense(hidden, part.dense) for part in parts), dense(hidden, whole.dense), atol=1e-6)


@pytest.mark.parametrize("members", [2, 4])
def test_logits_of_the_parts_stand_side_by_side(whole, members):
    parts = [whole.shard(member, members) for member in range(members)]
    hidden = whole.embed(torch.tensor([1, 2, 8]))
    yielding = torch.tensor([0, 2])
    side_by_side = torch.cat([part.logits(hidden, whole.no_update.expand(3, 1), yielding) for part in parts], dim=1)
    assert side_by_side.shape == (2, members * -(-10 // members))
    assert torch.allclose(side_by_side[:, :10], whole.logits(hidden, whole.no_update.expand(3, 1), yielding), atol=1e-6)


def test_a_process_holds_the_parts_of_the_members_that_it_is(tiny_config):
    spec = Spec.model_validate({"model": str(tiny_config), "parallel": {"mode": "virtual", "layout": {"tp": 2}}})
    model, key = models.load(spec.model, allow_paths=True), network_key(spec)
    assert set(Network(model, key, CPU).parts) == {0, 1}
    one = Network(model, key, CPU, members=(1,))
    assert (set(one.parts), one.around) == ({1}, None)
    one.make_room(2, 16)
    (block,) = one.parts[1].attention[0].values()
    assert block.keys.shape == (2, 1, 16, 16)  # one of the two key-value heads


def test_only_attention_is_divided_so_without_it_all_layouts_share_their_weights(tiny_config):
    def key(tp, attention):
        parallel = {"mode": "virtual", "layout": {"tp": tp}}
        return network_key(Spec.model_validate(
            {"model": str(tiny_config), "parallel": parallel, "kernels": {"attention": attention}}
        ))  # fmt: skip

    assert key(1, False) == key(2, False)
    assert key(1, True) != key(2, True)


def network_of(tiny_config, **changes):
    spec = Spec.model_validate({"model": str(tiny_config), "kernels": {"attention": False}, **changes})
    return Network(models.load(spec.model, allow_paths=True), network_key(spec), CPU)


def test_experts_are_made_when_asked_for_and_the_same_in_every_network(tiny_config):
    one, other = network_of(tiny_config), network_of(tiny_config)
    assert one.experts(0) is one.experts(0)
    assert torch.equal(one.experts(0).gate_up, other.experts(0).gate_up)
    before = other.rounded(0).experts.of(3)
    assert all(torch.equal(a, b) for a, b in zip(before, one.rounded(0).experts.of(3), strict=True))


def test_quantized_experts_are_the_same_whether_unrounded_ones_are_held_or_not(tiny_config):
    alone, beside = network_of(tiny_config), network_of(tiny_config)
    beside.experts(0)
    assert torch.equal(alone.experts(0, "int8").down.values, beside.experts(0, "int8").down.values)
    values = alone.experts(0, "int8").down.values[5] * alone.experts(0, "int8").down.scales[5][:, None].float()
    assert torch.equal(values, alone.rounded(0, "int8").experts.of(5)[2])


def test_a_rank_of_this_process_shares_the_quantized_experts_that_lie_together(tiny_config):
    network = network_of(tiny_config)
    whole, blocks = network.experts(0, "int8"), network.experts_of_rank(0, [4, 5, 6], "int8")
    assert blocks.down.values.data_ptr() == whole.down.values[4].data_ptr()
    mixed = network.experts_of_rank(0, [6, 1], "int8")
    assert torch.equal(mixed.down.values, whole.down.values[[6, 1]])
    assert network.experts_of_rank(0, [6, 1]) is not mixed


def test_a_process_of_a_rank_makes_its_own_quantized_experts_alone(tiny_config):
    parallel = {"mode": "distributed", "layout": {"dp": 2}}
    network = network_of(tiny_config, parallel=parallel)
    own = network.experts_of_rank(0, [2, 7], "int8")
    assert own.down.values.shape[0] == 2
    assert torch.equal(own.down.values, network_of(tiny_config).experts(0, "int8").down.values[[2, 7]])
