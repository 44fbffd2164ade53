"""Measuring the expert kernels of a machine in the browser, and what its page shows of them."""

from __future__ import annotations

from typing import Any

import pytest

from bench_worker.kernel_report import Table, ask
from bench_worker.noise import Seen, around, with_machine
from bench_worker.result import Choice, GraphTimes, Noise
from tests.webapp.experiments import make, rows
from tests.webapp.experiments.rows import MACHINE, text_of, title_of
from webapp.experiments import ingest, machines, queue
from webapp.experiments.kernels import RULES
from webapp.experiments.models import Experiment, Kind, Machine, State

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]
GIVEN = {
    "model": "olmoe-1b-7b", "tokens": "1, 64", "dtype": "bfloat16", "load": "uniform", "quantization": "none"
}  # fmt: skip


@pytest.fixture
def machine() -> Machine:
    return machines.register_this(MACHINE, "default")


def words(response: Any) -> str:
    return text_of(response).replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_says_what_will_stand_there(signed_in: Any, machine: Machine) -> None:
    text = words(signed_in.get(machine.get_absolute_url()))
    assert "Every expert backend at several numbers of tokens will stand here" in text
    assert "Bandwidth and matrix rates will stand here" in text
    assert "Measure the kernels" in text


def test_the_button_queues_a_table_in_the_machines_pool(signed_in: Any, member: Any) -> None:
    chosen = machines.register_this(MACHINE, "cuda")
    response = signed_in.post(chosen.get_absolute_url(), GIVEN)
    [row] = Experiment.objects.all()
    assert (response.status_code, response.url) == (302, row.get_absolute_url())
    assert (row.kind, row.pool, row.state, row.author) == (Kind.KERNELS, "cuda", State.QUEUED, member)
    assert row.document == {"title": "Kernels: olmoe-1b-7b, bfloat16", **GIVEN, "tokens": [1, 64]}
    text = words(signed_in.get(chosen.get_absolute_url()))
    assert "Waiting for a worker of pool cuda: Kernels: olmoe-1b-7b, bfloat16" in text


@pytest.mark.parametrize(
    ("typed", "field", "sentence"),
    [
        ({"tokens": "1, eight"}, "tokens", "'eight' is not a whole number from 1 to 131,072"),
        ({"tokens": ""}, "tokens", "'' is not a whole number from 1 to 131,072"),
        ({"model": "gpt-9"}, "model", "'gpt-9' is not one of "),
        ({"dtype": "fp8"}, "dtype", "'fp8' is not one of "),
        ({"load": "recorded"}, None, "the profile recorded replays one"),
        ({"load": "odd"}, "load", "'odd' is not one of "),
        ({"quantization": "fp8"}, "quantization", "'fp8' is not built yet; this version runs none, int8, int4"),
        ({"quantization": "int4", "model": "gpt-oss-20b"}, "quantization", "'auto' finds nothing that can run: "),
    ],
)
def test_what_there_is_not_is_refused_beside_its_field(
    signed_in: Any, machine: Machine, typed: dict[str, str], field: str | None, sentence: str
) -> None:
    response = signed_in.post(machine.get_absolute_url(), GIVEN | typed)
    assert response.status_code == 422
    errors = response.context["form"].errors
    assert list(errors) == [field or "__all__"]
    assert sentence in errors[field or "__all__"][0]
    assert '<details id="measure" open>' in response.content.decode()
    assert not Experiment.objects.exists()


def test_what_does_not_fit_is_refused_with_both_figures(signed_in: Any) -> None:
    small = machines.register_this(MACHINE | {"memory_bytes": 500_000_000}, "default")
    response = signed_in.post(small.get_absolute_url(), GIVEN)
    assert response.status_code == 422
    assert "measuring olmoe-1b-7b at 64 tokens needs" in words(response)
    assert not Experiment.objects.exists()


def test_a_measured_table_shows_shares_times_and_why_a_backend_is_missing(signed_in: Any, member: Any) -> None:
    row = rows.measured_kernels(member)
    assert row.machine is not None
    text = words(signed_in.get(row.machine.get_absolute_url()))
    assert "Backend 1 token 64 tokens auto 89% 90.0 µs best zentorch, whole 89% 720 µs best zentorch, whole" in text
    assert "loop 53% 150 µs 53% 1.20 ms" in text
    assert "deepspeed_layer can't run here: olmoe-1b-7b is not for it." in text
    assert "64 padded gate_up 3.20 ms 3.36 ms 640 µs 20% 40.0 GB/s overhead 4.44× 75% 0.00300 15" in text
    assert "2026-03-01 02:00 UTC 2 40.0 GB/s median −5.0% 36.0 GB/s" in text
    assert "What changed in the kernels" not in text


def test_warnings_and_flags_stand_beside_the_numbers(signed_in: Any, member: Any) -> None:
    table = make.table(flags=["Other processes took 40% of the processors meanwhile."])
    warned = {"2": make.ceilings(warnings=["The ceilings may be too low."])}
    row = rows.measured_kernels(member, table.model_copy(update={"ceilings": warned}))
    assert row.machine is not None
    for address in (row.machine.get_absolute_url(), row.get_absolute_url()):
        assert "Other processes took 40% of the processors meanwhile." in words(signed_in.get(address))
    assert "The ceilings may be too low." in words(signed_in.get(row.machine.get_absolute_url()))


def test_two_tables_are_compared_the_earlier_one_first_whichever_is_chosen(signed_in: Any, member: Any) -> None:
    first, second = (
        rows.measured_kernels(member),
        rows.measured_kernels(member, make.table(slower=1.25, day=2, cores=4)),
    )
    rows.measured_kernels(member, make.table("qwen3-30b-a3b", day=3))
    assert first.machine is not None
    address = first.machine.get_absolute_url()
    for chosen, before in ((second, first), (first, second)):
        text = words(signed_in.get(address, {"table": chosen.pk, "before": before.pk}))
        assert "Of 10 times, 10 slower by more than 5%." in text
        assert "deepspeed ▲ 25% ▲ 25%" in text
        assert "Ceiling: Read 40.0 GB/s 32.0 GB/s −20%" in text
        assert "Cores 2 4" in text
    latest = signed_in.get(address)
    assert latest.context["row"].document["model"] == "qwen3-30b-a3b"
    assert latest.context["others"] == []
    assert "What changed in the kernels" not in words(latest)
    usual = signed_in.get(address, {"table": second.pk, "before": "nonsense"})
    assert usual.context["other"] == first


def test_the_form_starts_from_the_table_before(signed_in: Any, member: Any) -> None:
    row = rows.measured_kernels(member)
    assert row.machine is not None
    form = signed_in.get(row.machine.get_absolute_url()).context["form"]
    assert {name: form[name].value() for name in GIVEN} == GIVEN


def test_a_gpu_is_not_verified_before_its_check_has_passed(signed_in: Any, member: Any) -> None:
    sentence = "Not verified on GPU"
    row = rows.measured_kernels(member)
    assert sentence not in words(signed_in.get(row.get_absolute_url()))
    row = rows.measured_kernels(member, make.table(gpus=[{"name": "NVIDIA H200", "memory_bytes": 141e9}]))
    assert sentence in words(signed_in.get(row.get_absolute_url()))


def test_a_table_has_a_page_of_its_own(signed_in: Any, member: Any) -> None:
    row = rows.measured_kernels(member)
    response = signed_in.get(row.get_absolute_url())
    text = words(response)
    assert title_of(response) == "Done · Kernels: olmoe-1b-7b, bfloat16 · Moescope"
    assert "zentorch is the fastest at every size. The fastest reach 89% of the floor." in text
    assert "python -m bench_worker kernels --model olmoe-1b-7b --tokens 1,64 --dtype bfloat16 --load uniform" in text
    assert "Clone" not in text
    assert "Copy as JSON" not in text
    assert "Compare with other tables of this machine" in text


def test_while_it_waits_and_runs_its_page_says_so(signed_in: Any, member: Any) -> None:
    row = queue.enqueue_kernels(ask("olmoe-1b-7b", "1,64"), author=member, pool="default")
    assert "Waiting for a worker of pool default." in words(signed_in.get(row.get_absolute_url()))
    claimed = queue.claim("default", machines.register_this(MACHINE, "default"))
    assert claimed is not None
    steps = {"done": 1, "total": 2, "since": 0}
    queue.beat(queue.fence_of(claimed), {"phase": "sizes", "done": 1, "total": 2, "steps": steps})
    response = signed_in.get(row.get_absolute_url())
    assert title_of(response).startswith("50% · ")
    assert "measuring every backend, one number of tokens after the other" in words(response)
    assert "and measures Kernels: olmoe-1b-7b" in words(signed_in.get(claimed.machine.get_absolute_url()))
    for address in ("/", "/experiments/"):
        assert "Kernels: olmoe-1b-7b, bfloat16" in words(signed_in.get(address))


def test_a_failed_table_says_why(signed_in: Any, member: Any) -> None:
    queue.enqueue_kernels(ask("olmoe-1b-7b", "1"), author=member, pool="default")
    row = queue.claim("default")
    assert row is not None
    rows.ended(row, State.FAILED)
    assert "The measuring program was killed (SIGKILL)." in words(signed_in.get(row.get_absolute_url()))


def test_its_result_is_downloaded_as_the_worker_wrote_it(signed_in: Any, member: Any) -> None:
    row = rows.measured_kernels(member)
    response = signed_in.get(f"{row.get_absolute_url()}result/")
    assert Table.model_validate_json(response.content) == make.table()


def test_there_is_no_experiment_file_of_it_and_nothing_to_start_from(signed_in: Any, member: Any) -> None:
    row = rows.measured_kernels(member)
    assert signed_in.get(f"{row.get_absolute_url()}experiment/").status_code == 404
    assert signed_in.get("/experiments/new/", {"from": row.pk}).status_code == 404


def test_it_is_measured_again_under_its_new_title(signed_in: Any, member: Any) -> None:
    row = rows.measured_kernels(member)
    signed_in.post(f"{row.get_absolute_url()}describe/", {"title": "Mine", "tags": "night", "notes": ""})
    signed_in.post(f"{row.get_absolute_url()}rerun/")
    again = Experiment.objects.get(state=State.QUEUED)
    assert (again.kind, again.title, again.tags, again.document["tokens"]) == (Kind.KERNELS, "Mine", ["night"], [1, 64])


def test_what_does_not_fit_any_more_is_not_measured_again(signed_in: Any, member: Any) -> None:
    row = rows.measured_kernels(member)
    Machine.objects.update(details=MACHINE | {"memory_bytes": 500_000_000})
    response = signed_in.post(f"{row.get_absolute_url()}rerun/", follow=True)
    assert "Not queued: measuring olmoe-1b-7b at 64 tokens needs" in words(response)
    assert Experiment.objects.count() == 1


def test_a_deleted_table_is_gone_from_the_machine(signed_in: Any, member: Any) -> None:
    row = rows.measured_kernels(member)
    signed_in.post(f"{row.get_absolute_url()}delete/")
    assert row.machine is not None
    assert signed_in.get(row.machine.get_absolute_url()).context["tables"] == []


def test_ceilings_are_drawn_from_the_second_calibration_on_with_tables_marked(signed_in: Any, member: Any) -> None:
    row = rows.measured_kernels(member)
    assert row.machine is not None
    assert signed_in.get(row.machine.get_absolute_url()).context["ceiling_charts"] == []
    other = rows.run(member)
    queue.begin_ingest(queue.fence_of(other))
    measured = make.result(make.experiment()).model_copy(update={"ceilings": {"2": make.ceilings(31.5, day=4)}})
    ingest.ingest(queue.fence_of(other), measured, other.machine)
    page = signed_in.get(row.machine.get_absolute_url())
    charts = page.context["ceiling_charts"]
    assert [chart.title for chart in charts] == ["Memory", "float32", "bfloat16"]
    assert charts[0].config["data"]["datasets"][0]["pointStyle"] == ["triangle", "circle"]
    assert "triangles came with a table of kernels" in words(page)


def test_the_two_modes_of_a_shared_machine_are_told(signed_in: Any, member: Any) -> None:
    read = make.ceiling(79.0).model_copy(update={"modes": (49.0, 78.5)})
    found = {"2": make.ceilings(79.0).model_copy(update={"read": read})}
    row = rows.measured_kernels(member, make.table().model_copy(update={"ceilings": found}))
    assert row.machine is not None
    assert "two modes, 49.0 and 78.5" in words(signed_in.get(row.machine.get_absolute_url()))


def test_ceilings_of_experiments_count_too(signed_in: Any, member: Any) -> None:
    row = rows.run(member)
    queue.begin_ingest(queue.fence_of(row))
    measured = make.result(make.experiment()).model_copy(update={"ceilings": {"2": make.ceilings(31.5, day=4)}})
    ingest.ingest(queue.fence_of(row), measured, row.machine)
    rows.done(member)  # of a version that measured none
    assert row.machine is not None
    assert "2026-03-04 02:00 UTC 2 31.5 GB/s" in words(signed_in.get(row.machine.get_absolute_url()))


@pytest.mark.parametrize("count", [2, 9])
def test_the_queries_do_not_grow(signed_in: Any, member: Any, count: int, django_assert_num_queries: Any) -> None:
    made = [rows.measured_kernels(member, make.table(day=day + 1)) for day in range(count)]
    assert made[0].machine is not None
    with django_assert_num_queries(10):  # session, user; machine, its states, what runs, recent; tables, what waits,
        signed_in.get(made[0].machine.get_absolute_url())  # ceilings, the two that are compared
    with django_assert_num_queries(3):  # session, user; the row with its machine
        signed_in.get(made[0].get_absolute_url())


def test_an_experiment_says_how_steady_its_runs_were_and_how_near_to_the_limit(signed_in: Any, member: Any) -> None:
    text = words(signed_in.get(rows.done(member).get_absolute_url()))
    assert "3 of 4 runs were steady, 1 drifting." in text
    assert f"drifting {RULES['drifting']}" in text
    assert "gate_up at 1×16 – 20% overhead 90% memory 40% overhead" in text
    assert "route 36.0 µs 6.00 µs 20% overhead route.gate 24.0 µs 5.00 µs 25% overhead" in text
    assert "What auto chose" not in text
    assert "CUDA graphs" not in text


def contended(member: Any, bandwidth: float) -> Experiment:
    """An experiment around whose runs the memory bus gave so many GB/s, of 80."""
    row = rows.run(member)
    made = make.result(make.experiment())
    machine = around([Seen(bandwidth)] * 3, Seen(80.0), "memory")
    runs = [run.model_copy(update={"noise": with_machine(Noise(label="steady", samples=40), machine)})
            for run in made.runs]  # fmt: skip
    queue.begin_ingest(queue.fence_of(row))
    ingest.ingest(queue.fence_of(row), made.model_copy(update={"runs": runs}), row.machine)
    return row


def test_a_run_on_a_machine_that_was_not_as_usual_says_so_with_what_the_probes_saw(signed_in: Any, member: Any) -> None:
    address = contended(member, 49.0).get_absolute_url()
    text = words(signed_in.get(address))
    assert "0 of 4 runs were steady, 4 contended." in text
    assert "gate_up at 1×16: The memory bus gave 49 GB/s around this run, 61% of what this machine was" in text
    assert f"contended {RULES['contended']}" in text
    assert "40 49.0 GB/s 61% –" in text  # steps, the bus, and no matrix rate
    table = signed_in.get(f"{address}tables/?table=runs").content.decode()
    assert table.count(",contended,0.0,0.0,49.0,\n") == 4
    usual = words(signed_in.get(contended(member, 79.0).get_absolute_url()))
    assert "All 4 runs were steady." in usual
    assert "40 79.0 GB/s 99% –" in usual


def test_a_comparison_of_two_times_tells_their_machines_apart(signed_in: Any, member: Any) -> None:
    runs = [contended(member, bandwidth).runs.order_by("position")[0].pk for bandwidth in (79.0, 49.0)]
    page, _, markdown = words(signed_in.get("/compare/", {"runs": ",".join(map(str, runs))})).partition("**Compare**")
    assert "The memory bus gave 79.0 GB/s around" in page
    assert "a part of their ratio is the machine's." in page
    assert "a part of their ratio is the machine's. What differs:" in markdown


def test_a_chip_stands_beside_the_step_time_only_where_a_run_was_not_steady(signed_in: Any, member: Any) -> None:
    page = signed_in.get(rows.done(member).get_absolute_url()).content.decode()
    assert page.count('<a class="noise"') == 1
    assert '<a class="noise" data-noise="drifting" href="#steady"' in page


def test_an_experiment_shows_flags_choices_graphs_and_what_is_not_verified(signed_in: Any, member: Any) -> None:
    row = rows.run(member)
    made = make.result(make.experiment())
    choice = Choice(tokens=64, backend="zentorch", fusion="whole", layer_us={"zentorch": 9.0, "deepspeed": 14.0})
    refused = {"padded": "kernels.fusion: 'whole' is not something 'padded' can do; use none or gate_up"}
    graphs = GraphTimes(sampled_steps=9, eager_us=200.0, graph_us=80.0)
    run = made.runs[0].model_copy(update={"choices": [choice], "refused": refused, "graphs": graphs})
    environment = MACHINE | {
        "gpus": [{"name": "NVIDIA H200", "memory_bytes": 141e9}],
        "flags": ["Other processes took 40% of the processors meanwhile."],
    }
    queue.begin_ingest(queue.fence_of(row))
    measured = made.model_copy(update={"runs": [run, *made.runs[1:]], "environment": environment})
    ingest.ingest(queue.fence_of(row), measured, row.machine)
    text = words(signed_in.get(row.get_absolute_url()))
    assert "Other processes took 40% of the processors meanwhile." in text
    assert "Not verified on GPU" in text
    assert "What auto chose Tokens of a step Chosen deepspeed zentorch 64 zentorch, whole 14.0 µs 9.00 µs" in text
    assert "padded was no candidate: 'whole' is not something 'padded' can do; use none or gate_up." in text
    assert "gate_up at 1×16 200 µs 80.0 µs 9" in text
