"""``manage.py bench``: the door without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from bench_worker.result import Result
from tests.webapp.experiments import make
from webapp.experiments import machines, queue
from webapp.experiments.management import queueing
from webapp.experiments.models import Experiment, State

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]


def test_it_queues_the_file_and_prints_the_number(file: Path, capsys: Any) -> None:
    call_command("bench", str(file))
    row = Experiment.objects.get()
    assert capsys.readouterr().out == f"{row.pk}\n"
    assert (row.state, row.document) == (State.QUEUED, make.experiment().document())


def test_it_waits_for_the_end_and_writes_the_result(
    file: Path, tmp_path: Path, capsys: Any, worker_meanwhile: None
) -> None:
    out = tmp_path / "result.json"
    call_command("bench", str(file), "--wait", "--out", str(out))
    assert Result.model_validate_json(out.read_bytes()) == make.result(make.experiment())
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "queued"
    assert said[-1].startswith("gate_up has the shortest median step at every corner.")


def test_out_alone_waits_too(file: Path, tmp_path: Path, worker_meanwhile: None) -> None:
    call_command("bench", str(file), "--out", str(tmp_path / "result.json"))
    assert (tmp_path / "result.json").exists()


def test_ctrl_c_ends_the_command_and_says_that_the_experiment_goes_on(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(queueing.time, "sleep", interrupt)
    with pytest.raises(CommandError) as caught:
        call_command("bench", str(file), "--wait")
    row = Experiment.objects.get()
    assert (caught.value.returncode, row.state) == (130, State.QUEUED)
    assert str(caught.value) == (
        f"Experiment {row.pk} goes on without you; cancel it on its page, {row.get_absolute_url()}"
    )


def test_a_failure_is_one_sentence_and_exit_code_1(file: Path, worker_meanwhile: None) -> None:
    file.write_text(json.dumps(make.document(title="exit 4 zentorch is not installed")))
    with pytest.raises(CommandError, match=r"^zentorch is not installed$") as failed:
        call_command("bench", str(file), "--wait")
    assert failed.value.returncode == 1


def test_a_canceled_experiment_is_not_done(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing.time, "sleep", lambda s: queue.request_cancel(Experiment.objects.get().pk))
    with pytest.raises(CommandError, match=r"was canceled") as failed:
        call_command("bench", str(file), "--wait")
    assert failed.value.returncode == 1


def test_it_queues_in_the_pool_that_is_named(file: Path) -> None:
    machines.register_this(make.MACHINE, "cuda")
    call_command("bench", str(file), "--pool", "cuda")
    assert Experiment.objects.get().pool == "cuda"


def test_a_pool_that_nobody_serves_is_refused_with_exit_code_2(file: Path) -> None:
    machines.register_this(make.MACHINE, "cuda")
    with pytest.raises(
        CommandError, match=r"^--pool: 'cudda' is not one that a worker has served: cuda, default.$"
    ) as refused:
        call_command("bench", str(file), "--pool", "cudda")
    assert refused.value.returncode == 2
    assert not Experiment.objects.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "experiment: the document is not valid JSON (line 1, column 2: "),
        (" " * 10_000_000, "experiment: the document has "),
        ('{"schema": 1, "base": {"model": "gpt-5"}}', "base.model: 'gpt-5' is not one of "),
        ('{"schema": 1, "base": {"model": "configs/mine.json"}}', "base.model: 'configs/mine.json' is a file path; "),
    ],
)
def test_a_bad_file_is_refused_with_exit_code_2(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    with pytest.raises(CommandError) as refused:
        call_command("bench", str(file))
    assert str(refused.value).startswith(sentence)
    assert refused.value.returncode == 2
    assert not Experiment.objects.exists()


def test_a_missing_file_is_refused_with_exit_code_2(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file") as refused:
        call_command("bench", str(tmp_path / "none.json"))
    assert refused.value.returncode == 2


def test_labels_come_with_the_command_and_from_the_environment(file: Path, settings: Any) -> None:
    settings.MOESCOPE_LABELS = ["image=1", "site=lab"]
    call_command("bench", str(file), "--label", "image=2", "--label", "engine=abc")
    assert Experiment.objects.get().labels == {"image": "2", "site": "lab", "engine": "abc"}


def test_a_worker_adds_its_own_labels_and_keeps_those_that_came(file: Path, settings: Any) -> None:
    call_command("bench", str(file), "--label", "image=2")
    settings.MOESCOPE_LABELS = ["image=1", "driver=580"]
    row = queue.claim("default")
    assert row is not None
    assert row.labels == {"image": "2", "driver": "580"}


def test_a_label_of_10_kb_is_refused_in_one_sentence(file: Path) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("bench", str(file), "--label", f"image={'x' * 10_000}")
    assert (
        str(refused.value) == "--label: the value of image has 10,000 characters, and must have 1 to 100, on one line."
    )
    assert refused.value.returncode == 2
    assert not Experiment.objects.exists()
