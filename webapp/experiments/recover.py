"""What a worker that died left on this machine, taken up by its successor: a whole result is stored, anything else is
queued again. Without it the row would wait until its heartbeat is overdue.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from webapp import processes
from webapp.experiments import attempts, launch, queue
from webapp.experiments.models import Experiment
from webapp.experiments.perform import answerable, store

log = logging.getLogger(__name__)


def recover() -> None:
    """Take up every attempt on this machine that nobody holds. Safe beside workers that measure."""
    for directory in attempts.directories():
        with attempts.left_behind(directory) as nobody_holds_it:
            if nobody_holds_it:
                processes.kill(processes.carrying(launch.MARK, str(directory)))
                _take_up(directory)


def _take_up(directory: Path) -> None:
    fence = attempts.fence_of(directory)
    row = queue.held(fence).first()
    if row is None or not _belongs_to(row, directory):
        return
    with answerable(fence):
        _conclude(row, fence, directory)


def _conclude(row: Experiment, fence: queue.Fence, directory: Path) -> None:
    output, result = directory / attempts.OUTPUT, directory / attempts.RESULT
    last_output = output.read_text() if output.exists() else ""
    if result.exists():
        log.warning("Experiment %s: storing the result that attempt %s left behind", *fence)
        store(row, result, last_output)
    else:
        log.warning("Experiment %s: attempt %s was lost with its worker", *fence)
        queue.lose(fence, "its process was killed", last_output)


def _belongs_to(row: Experiment, directory: Path) -> bool:
    """False for what lies here from another database, whose experiments have the same numbers."""
    file = directory / attempts.EXPERIMENT
    return not file.exists() or file.read_text() == json.dumps(row.document)
