"""What is refused about ranks, and in which words."""

import pytest

from bench_worker.errors import SpecError
from bench_worker.spec import Experiment, Library
from bench_worker.spec_fields import Spec
from bench_worker.spec_rules import check_run


def problems(allow_paths=False, kernels=None, **parallel):
    several = {"mode": "virtual", "layout": {"tp": 1, "dp": 4, "nodes": 1}}
    spec = Spec.model_validate({
        "model": "olmoe-1b-7b", "kernels": {"attention": False, **(kernels or {})}, "parallel": several | parallel,
    })  # fmt: skip
    return [str(problem) for problem in check_run(spec, Library(allow_paths=allow_paths))]


@pytest.mark.parametrize("mode", ["virtual", "distributed"])
@pytest.mark.parametrize("placement", ["contiguous", "round_robin", "eplb", "locality"])
def test_several_ranks_with_any_placement_have_no_problem(mode, placement):
    assert problems(mode=mode, placement=placement, redundant_experts=8) == []


@pytest.mark.parametrize(
    ("parallel", "sentence"),
    [
        ({"mode": "single"}, "parallel.layout.dp: 4 needs several ranks; set parallel.mode to virtual or distributed, "
                             "or use 1"),
        ({"mode": "single", "layout": {}, "placement": "eplb"},
         "parallel.placement: 'eplb' needs several ranks; set parallel.mode to virtual or distributed, or use "
         "contiguous"),
        ({"mode": "distributed", "topology": "h200-nccl"},
         "parallel.topology: 'h200-nccl' has no use with distributed, whose times are real; leave it empty"),
        ({"mode": "distributed", "count_only": True},
         "parallel.count_only: True has no use with distributed; use virtual, or false"),
        ({"layout": {}, "count_only": True}, "parallel.count_only: True has no use with one rank, which sends nothing"),
        ({"layout": {"tp": 2, "dp": 2, "nodes": 3}},
         "parallel.layout.nodes: 3 does not divide the 4 ranks (tp · dp)"),
        ({"layout": {"tp": 1, "dp": 6}}, "parallel.layout.dp: 6 ranks (tp · dp) do not divide the 64 experts of "
                                         "olmoe-1b-7b; 2 redundant experts would fill them up"),
        ({"layout": {"tp": 3, "dp": 1}}, "parallel.layout.tp: 3 ranks (tp · dp) do not divide the 64 experts of "
                                         "olmoe-1b-7b; 2 redundant experts would fill them up"),
        ({"redundant_experts": 3}, "parallel.redundant_experts: 3 and the 64 experts of olmoe-1b-7b do not divide by 4 "
                                   "ranks (tp · dp); 4 would"),
        ({"topology": "nowhere/mine.toml"}, "parallel.topology: 'nowhere/mine.toml' is a file path; file paths are for "
                                            "the command line only"),
        ({"kernels": {"attention": True}, "layout": {"tp": 2, "dp": 2}},
         "kernels.attention: True has no use with tp 2: olmoe-1b-7b norms queries over all heads together, which is "
         "not divided here; set it to false, or tp to 1"),
        ({"kernels": {"attention": True}, "layout": {"tp": 64, "dp": 1}},
         "parallel.layout.tp: 64 does not divide the 16 query heads of olmoe-1b-7b; with attention it is one of 1, 2, "
         "4, 8, 16"),
        ({"kernels": {"attention": True}, "count_only": True},
         "kernels.attention: True has no use with count_only, which times no compute; set it to false"),
        ({"kernels": {"experts": "auto"}}, "kernels.experts: 'auto' runs on one rank only; name one of deepspeed, "
                                           "loop, padded, zentorch"),
    ],
)  # fmt: skip
def test_ranks_that_make_no_sense_are_refused(parallel, sentence):
    assert problems(**parallel) == [sentence]


def test_a_topology_that_lacks_a_domain_in_use_is_refused(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[paths.wire]\norigin = "assumed"\nsource = "us"\nalpha_us = 1.0\ngb_per_s = 1.0\n'
        '[topologies.mine]\ndescription = "ours"\nintra_node = "wire"\n'
    )
    assert problems(allow_paths=True, topology=str(mine)) == []
    (problem,) = problems(allow_paths=True, topology=str(mine), layout={"tp": 1, "dp": 4, "nodes": 2})
    assert problem == "parallel.topology: 'mine' has no path inter_node, which this layout uses; it has intra_node"


@pytest.mark.parametrize(
    ("field", "values", "sentence"),
    [
        ("parallel.mode", ["virtual", "distributed"],
         "vary.values: 'distributed' beside another mode: real ranks can't be compared with one device "
         "in one experiment; make two, or use virtual for all"),
        ("parallel.layout", [{"dp": 2}, {"dp": 4}, {"tp": 2}],
         "vary.values: the variants have 2 and 4 ranks; real ranks are started once for all, so use one experiment for "
         "each number and compare their runs, or use virtual"),
    ],
)  # fmt: skip
def test_variants_with_real_ranks_need_equally_many(field, values, sentence):
    mode = "virtual" if field == "parallel.mode" else "distributed"
    base = {
        "model": "olmoe-1b-7b", "kernels": {"attention": False}, "parallel": {"mode": mode, "layout": {"dp": 2}},
    }  # fmt: skip
    with pytest.raises(SpecError) as caught:
        Experiment.model_validate({"base": base, "vary": {"field": field, "values": values}})
    assert str(caught.value) == sentence


def test_equally_many_real_ranks_are_compared():
    base = {"model": "olmoe-1b-7b", "kernels": {"attention": False}, "parallel": {"mode": "distributed"}}
    values = [{"dp": 4}, {"tp": 2, "dp": 2}]
    assert Experiment.model_validate({"base": base, "vary": {"field": "parallel.layout", "values": values}})
