"""``run``: measure an experiment file and write its result."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from typing import Any

from bench_worker.allocators import settle_allocators
from bench_worker.commands.common import CANCELED, DONE, StderrReport, fail, files_in, refuse_unwritable, written
from bench_worker.errors import DoesNotFit
from bench_worker.spec import Library, read_experiment


def run_command(args: argparse.Namespace) -> int:
    files, recordings = files_in(args.traces, "--traces", ".csv"), files_in(args.recordings, "--recordings", ".npz")
    experiment = read_experiment(args.file, Library(frozenset(files), frozenset(recordings), allow_paths=True))
    if args.out is not None:
        refuse_unwritable(args.out)
    stop = _stop_request(args.stop_on_eof)
    settle_allocators()

    import torch  # here: the other commands do without

    from bench_worker.runner import Canceled, run_experiment

    report = StderrReport()
    try:
        result = run_experiment(
            experiment, report, trace_files=files, recording_files=recordings, allow_paths=True, stop=stop.is_set
        )
    except Canceled:
        return fail(CANCELED, "canceled")
    except torch.OutOfMemoryError as error:
        raise DoesNotFit(f"measuring ran out of device memory: {str(error).splitlines()[0]}") from None
    report.progress("write", 1, 1)
    document = result.model_dump_json(by_alias=True)
    if args.out is None:
        print(document)
        return DONE
    return written(args.out, document)


def _stop_request(on_eof: bool) -> threading.Event:
    """Set by TERM, by Ctrl-C and, where asked, by the end of standard input. A second signal ends the process at
    once, since a stop is heard between two steps only."""
    stop = threading.Event()

    def hear(number: int, _frame: Any) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, hear)
    signal.signal(signal.SIGINT, hear)
    if on_eof:
        threading.Thread(target=_wait_for_eof, args=(stop,), daemon=True).start()
    return stop


def _wait_for_eof(stop: threading.Event) -> None:
    """Whoever started this run holds the other end of standard input; when it dies, so does the run."""
    try:
        while os.read(0, 4096):
            pass
    except OSError:  # it was closed from the start
        pass
    stop.set()
