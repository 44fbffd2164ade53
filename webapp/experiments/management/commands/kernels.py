"""``manage.py kernels [--model M] [--tokens N,N,…] [--pool POOL] [--wait] [--out RESULT]``: have a worker
of the product measure every expert backend against its machine's limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from bench_worker.kernel_report import ask
from webapp.experiments import memory, queue
from webapp.experiments.kernels_form import MODEL, TOKENS
from webapp.experiments.management.queueing import QueueingCommand
from webapp.experiments.models import Experiment


class Command(QueueingCommand):
    help = "Queues a table of expert backends on the running product and prints its number."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", default=MODEL, help="a preset")
        parser.add_argument("--tokens", default=TOKENS, metavar="N,N,…", help="tokens of a step")
        parser.add_argument("--dtype", default="bfloat16")
        parser.add_argument("--load", default="uniform", help="uniform or zipf")
        parser.add_argument("--quantization", default="none", help="format of the experts: none, int8 or int4")
        super().add_arguments(parser)

    def handle(self, *args: Any, pool: str | None, wait: bool, out: Path | None, **options: Any) -> None:
        chosen = pool or settings.MOESCOPE_POOL

        def enqueue() -> Experiment:
            asked = ask(*(options[name] for name in ("model", "tokens", "dtype", "load", "quantization")))
            memory.check_kernels(asked, chosen)
            return queue.enqueue_kernels(asked, author=None, pool=chosen)

        self.queue(enqueue, pool, wait, out)
