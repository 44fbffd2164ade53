"""``manage.py bench FILE [--pool POOL] [--label KEY=VALUE] [--wait] [--out RESULT]``: queue an experiment file on the
running product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from bench_worker.spec import read_experiment
from webapp.experiments import labels, memory, queue
from webapp.experiments.management.queueing import QueueingCommand
from webapp.experiments.models import Experiment
from webapp.traces.store import traces_library


class Command(QueueingCommand):
    help = "Queues an experiment file on the running product and prints the experiment's number."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--label", action="append", default=[], metavar="KEY=VALUE", help="a mark in the history; may be repeated"
        )
        super().add_arguments(parser)

    def handle(
        self, *args: Any, file: Path, label: list[str], pool: str | None, wait: bool, out: Path | None, **options: Any
    ) -> None:
        def enqueue() -> Experiment:
            experiment = read_experiment(file, traces_library())
            memory.check(experiment, pool)
            given = queue.labels_here() | labels.parse(label, "--label")
            return queue.enqueue(experiment, author=None, pool=pool, labels=given)

        self.queue(enqueue, pool, wait, out)
