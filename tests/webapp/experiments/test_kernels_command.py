"""``manage.py kernels``: the same table without a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from bench_worker.kernel_report import Table
from tests.webapp.experiments import make
from webapp.experiments import launch, machines
from webapp.experiments.management import queueing
from webapp.experiments.models import Experiment, Kind
from webapp.experiments.perform import perform_next

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def worker_meanwhile(no_broker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's first pause is when a worker carries the work out."""
    monkeypatch.setattr(queueing.time, "sleep", lambda seconds: perform_next("default", lambda: False))
    monkeypatch.setattr(launch, "PROGRAM", (sys.executable, str(Path(__file__).with_name("fake_worker.py"))))


def test_it_queues_a_table_waits_and_writes_it(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "table.json"
    call_command("kernels", "--model", "olmoe-1b-7b", "--tokens", "1,64", "--wait", "--out", str(out))
    row = Experiment.objects.get()
    printed, said = capsys.readouterr()
    assert (printed, row.kind) == (f"{row.pk}\n", Kind.KERNELS)
    assert said.splitlines()[-1].startswith("zentorch is the fastest at every size.")
    assert Table.model_validate_json(out.read_bytes()) == make.table()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--tokens", "0"], 2, "'0' is not a whole number"),
        (["--model", "gpt-9"], 2, "'gpt-9' is not one of"),
        (["--pool", "gone"], 2, "'gone' is not one that a worker has served"),
        ([], 3, "measuring qwen3-30b-a3b at 2,048 tokens needs"),
    ],
)
def test_what_can_not_be_measured_is_refused_with_the_programs_codes(
    arguments: list[str], code: int, sentence: str
) -> None:
    machines.register_this(make.MACHINE | {"memory_bytes": 1_000_000_000}, "default")
    with pytest.raises(CommandError, match=sentence) as refused:
        call_command("kernels", *arguments)
    assert refused.value.returncode == code
    assert not Experiment.objects.exists()


def test_a_failure_is_one_sentence(capsys: Any) -> None:
    with pytest.raises(CommandError, match=r"^needs 61.1 GB$") as failed:
        call_command("kernels", "--model", "olmoe-1b-7b", "--tokens", "13", "--wait")
    assert failed.value.returncode == 1
