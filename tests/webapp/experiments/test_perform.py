"""One attempt from claim to end, through a real process that speaks the measuring program's protocol."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import OperationalError
from django.utils import timezone

from bench_worker.kernel_report import Table, ask
from bench_worker.result import Result
from tests.webapp.experiments import make
from tests.webapp.experiments.waiting import wait_until
from webapp import guard
from webapp.experiments import attempts, export, jobs, launch, machines, perform, queue
from webapp.experiments.models import Experiment, Kind, State
from webapp.experiments.recover import recover
from webapp.traces.recording_store import import_recording
from webapp.traces.store import import_trace

pytestmark = pytest.mark.django_db
REAL = launch.PROGRAM
FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


@pytest.fixture(autouse=True)
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PROGRAM", FAKE)


@pytest.fixture
def at_beat(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Experiment], None]], None]:
    """Has something happen at the first heartbeat that has progress to tell."""

    def arrange(happens: Callable[[Experiment], None]) -> None:
        beat, waiting = queue.beat, [happens]

        def instead(fence: queue.Fence, progress: dict[str, Any], *rest: Any) -> queue.Order:
            if progress and waiting:
                waiting.pop()(Experiment.objects.get(pk=fence.experiment))
            return beat(fence, progress, *rest)

        monkeypatch.setattr(queue, "beat", instead)

    return arrange


def attempt(
    title: str = "Fusion",
    shutting_down: Callable[[], bool] = lambda: False,
    traces: frozenset[str] = frozenset(),
    recordings: frozenset[str] = frozenset(),
    **changes: Any,
) -> Experiment:
    """Queue an experiment, claim it and carry it out; the row as it is afterwards."""
    row = queue.enqueue(make.experiment(traces, recordings, title=title, **changes), author=None)
    assert perform.perform_next("default", shutting_down)
    row.refresh_from_db()
    return row


def running() -> Experiment:
    queue.enqueue(make.experiment(), author=None)
    row = queue.claim("default")
    assert row is not None
    return row


def processes_of(row: Experiment) -> list[psutil.Process]:
    """What is left of the attempt: its directory is named after the experiment."""
    mark = f"/attempts/{row.pk}-"
    return [process for process in psutil.process_iter(["cmdline"]) if mark in " ".join(process.info["cmdline"] or [])]


def program_of(row: Experiment) -> list[psutil.Process]:
    return [process for process in processes_of(row) if guard.__name__ not in process.info["cmdline"]]


def test_a_finished_measurement_is_stored_with_its_machine() -> None:
    row = attempt()
    assert (row.state, row.failure, row.so_far) == (State.DONE, "", [])
    assert [(run.variant, run.condition) for run in row.runs.all()] == [
        ("gate_up", "1×16"), ("none", "1×16"), ("gate_up", "4×64"), ("none", "4×64")
    ]  # fmt: skip
    assert row.machine is not None
    assert (row.machine.name, row.machine.fingerprint) == ("test bench", "abc123")
    assert row.answer.startswith("gate_up has the shortest median step at every corner.")


def test_where_nothing_waits_nothing_is_done() -> None:
    assert not perform.perform_next("default", lambda: False)


def test_a_claim_that_was_not_committed_leaves_a_directory_that_nobody_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may end between making the directory and the commit."""
    row = queue.enqueue(make.experiment(), author=None)

    def dies(fence: queue.Fence) -> None:
        (attempts.home() / f"{fence.experiment}-{fence.attempt}").mkdir()
        raise SystemExit

    with monkeypatch.context() as death:
        death.setattr(attempts, "begun", dies)
        with pytest.raises(SystemExit):
            perform.perform_next("default", lambda: False)
    row.refresh_from_db()
    assert row.state == State.QUEUED
    recover()
    assert attempts.directories() == []
    assert perform.perform_next("default", lambda: False)


def test_the_download_equals_what_the_worker_wrote() -> None:
    row = attempt()
    assert export.result_of(row) == make.result(make.experiment())


@pytest.mark.parametrize(
    ("title", "sentence"),
    [
        ("exit 2 base.layers: no", "base.layers: no"),
        ("exit 3 needs 61.1 GB", "needs 61.1 GB"),
        ("exit 4 zentorch is not installed", "zentorch is not installed"),
        ("exit 130", "The measuring program was told to stop by someone other than this product."),
        ("exit 7 oh", "The measuring program ended with exit code 7: oh"),
        ("killed", "The measuring program was killed (SIGKILL)"),
    ],
)
def test_every_bad_end_fails_with_its_sentence_and_what_was_finished(title: str, sentence: str) -> None:
    row = attempt(title)
    assert row.state == State.FAILED
    assert row.failure.startswith(sentence)
    assert [run["variant"] for run in row.so_far] == ["gate_up"]
    assert not row.runs.exists()


def test_a_killed_program_leaves_its_last_output() -> None:
    assert attempt("killed").last_output == "about to go"


@pytest.mark.parametrize("title", ["no result", "half a result"])
def test_a_missing_or_broken_result_is_a_failure(title: str) -> None:
    row = attempt(title)
    assert row.state == State.FAILED
    assert row.failure.startswith("The measuring program ended well but left no whole result: ")
    assert not row.runs.exists()


def test_one_that_hangs_is_stopped_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0.5)
    row = attempt("hang", measure={"max_seconds": 1})
    assert row.failure == "The measuring program was stopped: it still ran after 2 s, the most it may take."
    assert not processes_of(row)


def test_a_cancel_request_ends_the_program(at_beat: Any) -> None:
    at_beat(lambda row: queue.request_cancel(row.pk))
    row = attempt("hang")
    assert row.state == State.CANCELED
    assert row.last_output == "hanging"
    assert not processes_of(row)


def test_an_attempt_that_lost_its_row_stops_and_leaves_the_row_alone(at_beat: Any) -> None:
    def successor(row: Experiment) -> None:
        queue.give_back(queue.fence_of(row))
        assert queue.claim("default") == row

    at_beat(successor)
    row = attempt("hang")
    assert (row.state, row.attempt) == (State.RUNNING, 2)
    assert not processes_of(row)


def test_a_shutdown_gives_the_experiment_back_at_once() -> None:
    row = attempt("hang", shutting_down=lambda: True)
    assert (row.state, row.attempt, row.started_at) == (State.QUEUED, 1, None)
    assert not processes_of(row)


def test_a_worker_may_be_shut_down_as_often_as_one_likes() -> None:
    row = attempt("hang", shutting_down=lambda: True)
    for _ in range(queue.MAX_ATTEMPTS):
        assert perform.perform_next("default", lambda: True)
    row.refresh_from_db()
    assert row.state == State.QUEUED


def test_a_database_that_is_away_for_a_moment_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    beat, refused = queue.beat, [1, 2]

    def away(*args: Any) -> queue.Order:
        if refused:
            refused.pop()
            raise OperationalError("the server closed the connection")
        return beat(*args)

    monkeypatch.setattr(queue, "beat", away)
    monkeypatch.setattr(perform.connection, "close", lambda: None)  # it holds this test's transaction
    assert attempt().state == State.DONE


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again at once, and gives up at the first try after that."""
    monkeypatch.setattr(perform, "RETRY_S", 0)
    monkeypatch.setattr(queue, "HEARTBEAT_TIMEOUT", queue.timedelta(0))
    monkeypatch.setattr(perform.connection, "close", lambda: None)


def away_for(times: int, change: Callable[..., Any]) -> Callable[..., Any]:
    """``change`` in a database that can't be reached at first; what is written the first time is written twice."""
    left = [OperationalError("the server closed the connection")] * times

    def instead(*args: Any, **kwargs: Any) -> Any:
        answer = change(*args, **kwargs)
        if left:
            raise left.pop()
        return answer

    return instead


@pytest.mark.parametrize("change", ["begin_ingest", "fail", "cancel", "give_back"])
def test_an_answer_that_got_lost_does_no_harm(change: str, monkeypatch: pytest.MonkeyPatch, at_beat: Any) -> None:
    monkeypatch.setattr(perform, "RETRY_S", 0)
    monkeypatch.setattr(perform.connection, "close", lambda: None)
    monkeypatch.setattr(queue, change, away_for(3, getattr(queue, change)))
    if change == "cancel":
        at_beat(lambda row: queue.request_cancel(row.pk))
    title = {"fail": "exit 7 oh", "cancel": "hang", "give_back": "hang"}.get(change, "Fusion")
    row = attempt(title, shutting_down=lambda: change == "give_back")
    end = {"fail": State.FAILED, "cancel": State.CANCELED, "give_back": State.QUEUED}.get(change, State.DONE)
    assert (row.state, row.runs.count()) == (end, 4 if end == State.DONE else 0)
    assert row.handed_back == (1 if change == "give_back" else 0)


def test_a_result_is_stored_once_though_the_answer_got_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perform, "RETRY_S", 0)
    monkeypatch.setattr(perform.connection, "close", lambda: None)
    monkeypatch.setattr(perform, "ingest", away_for(1, perform.ingest))
    row = attempt()
    assert (row.state, row.runs.count()) == (State.DONE, 4)


def test_a_result_outlives_a_long_outage_on_the_disk(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any) -> None:
        raise OperationalError("no route to host")

    with monkeypatch.context() as outage:
        outage.setattr(perform, "ingest", away)
        with pytest.raises(OperationalError, match="no route to host"):
            attempt()
    [row] = Experiment.objects.all()
    assert row.state == State.INGESTING
    recover()
    row.refresh_from_db()
    assert (row.state, row.runs.count()) == (State.DONE, 4)


def test_an_error_of_the_worker_fails_the_experiment_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*args: Any) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(perform, "write_inputs", breaks)
    with pytest.raises(ValueError, match="odd"):
        attempt()
    [row] = Experiment.objects.all()
    assert (row.state, row.failure) == (State.FAILED, "The worker could not carry it out: odd")


def test_a_measurement_may_take_what_is_set_or_what_is_free(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perform.host_memory, "available_bytes", lambda: 10_000_000_000)
    assert perform.memory_limit() == 10_000_000_000 - perform.RESERVE_BYTES
    settings.MOESCOPE_MEMORY_GB = 2.5
    assert perform.memory_limit() == 2_500_000_000


def test_one_that_eats_memory_fails_with_the_amount(settings: Any) -> None:
    settings.MOESCOPE_MEMORY_GB = 0.5
    row = attempt("eat")
    assert row.state == State.FAILED
    sentence = r"The measuring program was stopped: out of memory, it used \S+\s[MG]B of 500\sMB\."
    assert re.fullmatch(sentence, row.failure)
    assert row.last_output == "hungry"
    assert not processes_of(row)


def test_the_worker_gets_the_recordings_that_the_experiment_names(tmp_path: Path) -> None:
    for name in ("arxiv", "c4", "unnamed"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"counts": [[len(name)] * 64]}))
        import_recording([tmp_path / f"{name}.json"])
    base = {"model": "olmoe-1b-7b", "load": {"profile": "recorded", "recording": "arxiv"}}
    vary = {"field": "load.recording", "values": ["arxiv", "c4"]}
    row = attempt("show recordings", recordings=frozenset(["arxiv", "c4"]), base=base, vary=vary)
    assert "arxiv.npz c4.npz" in row.last_output.splitlines()


def test_the_worker_gets_an_imported_trace_with_every_digit(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,3,4\n0.1,5,6\n0.30000000000000004,7,8\n")
    import_trace(file)
    base = {"model": "olmoe-1b-7b", "workload": {"trace": "mine", "requests": 3}}
    row = attempt("show trace", traces=frozenset(["mine"]), base=base)
    assert row.last_output.split() == [
        "arrival_s,prompt_tokens,output_tokens", "0.0,3,4", "0.1,5,6", "0.30000000000000004,7,8"
    ]  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_kill_9_of_the_program_fails_the_run_and_the_next_one_runs() -> None:
    """From outside, while it measures: what the system does when memory runs out."""
    row = queue.enqueue(make.experiment(title="hang"), author=None)

    def kill() -> None:
        assert wait_until(lambda: bool(program_of(row)))
        program_of(row)[0].send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert perform.perform_next("default", lambda: False)
    killer.join()
    row.refresh_from_db()
    assert row.state == State.FAILED
    assert "killed" in row.failure
    assert attempt().state == State.DONE


@pytest.mark.usefixtures("kept_ceilings")
def test_the_real_program_measures_and_its_result_is_stored_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PROGRAM", REAL)
    written: list[Result] = []
    ingest = perform.ingest

    def and_keep(fence: queue.Fence, measured: Result, machine: Any) -> bool:
        written.append(measured)
        return ingest(fence, measured, machine)

    monkeypatch.setattr(perform, "ingest", and_keep)
    row = attempt(conditions=[{"concurrency": 2, "prompt_tokens": 16}])
    assert (row.state, row.failure) == (State.DONE, "")
    assert row.machine is not None
    assert export.result_of(row) == written[0]
    for run in row.runs.all():
        columns = {series.stage: series.values for series in run.series.filter(rank=None)}
        assert sum(columns["prefill_tokens"]) == 4 * 16
        assert sum(columns["decode_tokens"]) == 4 * 3


@pytest.mark.usefixtures("kept_ceilings")
def test_the_real_program_refuses_and_stops_as_it_is_told(monkeypatch: pytest.MonkeyPatch, at_beat: Any) -> None:
    monkeypatch.setattr(launch, "PROGRAM", REAL)
    base = {"model": "olmoe-1b-7b", "workload": {"trace": "gone", "requests": 1}}
    gone = attempt(traces=frozenset(["gone"]), base=base)
    assert gone.state == State.FAILED
    assert gone.failure.startswith("base.workload.trace: ")
    at_beat(lambda row: queue.request_cancel(row.pk))
    assert attempt().state == State.CANCELED


def test_progress_says_how_far_the_steps_are_and_since_when_they_run() -> None:
    started = timezone.now().timestamp()
    row = attempt("exit 1")
    assert row.progress["phase"] == "measure"
    steps = row.progress["steps"]
    assert (steps["done"], steps["total"]) == (1, 4)
    assert started <= steps["since"] <= timezone.now().timestamp()


def test_the_steps_stay_in_view_while_the_next_corner_is_prepared(tmp_path: Path) -> None:
    beat = perform._Beat(running(), tmp_path, lambda: False)
    seen = []
    for event in (
        {"phase": "check", "done": 0, "total": 1},
        {"phase": "measure", "done": 3, "total": 8},
        {"phase": "warmup", "done": 0, "total": 2},
        {"phase": "measure", "done": 4, "total": 8},
    ):
        beat.write(launch.Report(progress=event))
        progress = Experiment.objects.get().progress
        assert progress["phase"] == event["phase"]
        seen.append(progress.get("steps"))
    before, first, meanwhile, second = seen
    assert before is None
    assert meanwhile == first
    assert second == first | {"done": 4}


def test_a_machine_that_registers_late_is_noted_all_the_same(tmp_path: Path) -> None:
    row = running()
    beat = perform._Beat(row, tmp_path, lambda: False)
    beat.write(launch.Report())
    row.refresh_from_db()
    assert row.machine is None
    machine = machines.register_this(make.MACHINE, row.pool)
    beat.write(launch.Report())
    row.refresh_from_db()
    assert row.machine == machine


def measure_kernels(tokens: str = "1,64", shutting_down: Callable[[], bool] = lambda: False) -> Experiment:
    row = queue.enqueue_kernels(ask("olmoe-1b-7b", tokens), author=None, pool="default")
    assert perform.perform_next("default", shutting_down)
    row.refresh_from_db()
    return row


def test_a_table_of_kernels_is_measured_as_an_experiment_is() -> None:
    row = measure_kernels()
    assert (row.state, row.failure, row.kind) == (State.DONE, "", Kind.KERNELS)
    assert row.machine is not None
    assert row.machine.fingerprint == "abc123"
    assert Table.model_validate(row.result) == make.table()
    assert not row.runs.exists()
    assert row.answer == "zentorch is the fastest at every size. The fastest reach 89% of the floor."
    assert processes_of(row) == []


def test_a_table_of_kernels_can_be_canceled_refused_and_handed_back(at_beat: Any) -> None:
    at_beat(lambda row: queue.request_cancel(row.pk))
    canceled = measure_kernels("7")
    assert canceled.state == State.CANCELED
    assert (canceled.progress["steps"]["done"], canceled.progress["steps"]["total"]) == (1, 4)
    refused = measure_kernels("13")
    assert (refused.state, refused.failure) == (State.FAILED, "needs 61.1 GB")
    assert measure_kernels("7", lambda: True).state == State.QUEUED
    assert processes_of(refused) == []


def test_a_table_of_kernels_that_hangs_is_stopped_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0.5)
    monkeypatch.setattr(jobs, "SECONDS_A_SIZE", 0.25)
    row = measure_kernels("7,8")
    assert row.failure == "The measuring program was stopped: it still ran after 1 s, the most it may take."
    assert processes_of(row) == []
