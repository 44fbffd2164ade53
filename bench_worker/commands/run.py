"""``run``: measure an experiment file and write its result."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path
from typing import Any

from bench_worker.allocators import settle_allocators
from bench_worker.commands.common import (
    CANCELED,
    DONE,
    SilentReport,
    StderrReport,
    fail,
    files_in,
    refuse_unwritable,
    written,
)
from bench_worker.commands.ranks import as_rank, hosts_of, start_ranks
from bench_worker.errors import DoesNotFit, SpecError
from bench_worker.parallel import launch, world
from bench_worker.spec import Experiment, Library, read_experiment


def run_command(args: argparse.Namespace) -> int:
    files, recordings = files_in(args.traces, "--traces", ".csv"), files_in(args.recordings, "--recordings", ".npz")
    experiment = read_experiment(args.file, Library(frozenset(files), frozenset(recordings), allow_paths=True))
    if args.out is not None:
        refuse_unwritable(args.out)
    hosts, place = hosts_of(args), world.place_of_this_process()
    if (ranks := real_ranks(experiment)) is None:
        if hosts.count > 1:
            raise SpecError("--nnodes", hosts.count, f"{hosts.count} hosts need parallel.mode distributed")
        return _measure(args, experiment, files, recordings, world.Alone())
    if place is None:
        return _launch(args, experiment, ranks, hosts)
    return as_rank(
        place, ranks, "base.parallel.layout", lambda crew: _measure(args, experiment, files, recordings, crew)
    )


def real_ranks(experiment: Experiment) -> int | None:
    """How many ranks the experiment needs to be started for it; None where it runs in this process."""
    parallel = experiment.variants()[0][1].parallel
    return parallel.layout.num_ranks if parallel.mode == "distributed" else None


def _launch(args: argparse.Namespace, experiment: Experiment, ranks: int, hosts: launch.Hosts) -> int:
    """Start this command once more for each rank; the first one writes the result."""
    if args.stop_on_eof:
        threading.Thread(target=_stop_at_eof, daemon=True).start()
    solvers = {run.spec.routing.solver for run in experiment.runs()}
    patience_s = launch.EXACT_SOLVER_S if "exact" in solvers else launch.HANGS_AFTER_S
    arguments = ["run", str(args.file), *(["--out", str(args.out)] if args.out else [])]
    for option, folder in (("--traces", args.traces), ("--recordings", args.recordings)):
        arguments += [option, str(folder)] if folder else []
    return start_ranks(arguments, ranks, hosts, patience_s)


def _measure(
    args: argparse.Namespace,
    experiment: Experiment,
    files: dict[str, Path],
    recordings: dict[str, Path],
    crew: world.Alone | world.World,
) -> int:
    stop = _stop_request(args.stop_on_eof)
    settle_allocators()

    import torch  # here: the other commands do without

    from bench_worker.runner import Canceled, run_experiment

    report = StderrReport() if crew.is_first else SilentReport()
    try:
        result = run_experiment(
            experiment,
            report,
            trace_files=files,
            recording_files=recordings,
            allow_paths=True,
            stop=stop.is_set,
            crew=crew,
        )
    except Canceled:
        return fail(CANCELED, "canceled") if crew.is_first else CANCELED
    except torch.OutOfMemoryError as error:
        raise DoesNotFit(f"measuring ran out of device memory: {str(error).splitlines()[0]}") from None
    if not crew.is_first:
        return DONE
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


def _stop_at_eof() -> None:
    ended = threading.Event()
    _wait_for_eof(ended)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for_eof(stop: threading.Event) -> None:
    """Whoever started this run holds the other end of standard input; when it dies, so does the run."""
    try:
        while os.read(0, 4096):
            pass
    except OSError:  # it was closed from the start
        pass
    stop.set()
