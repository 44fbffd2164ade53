"""What an attempt runs, by the kind of its row. All else about an attempt is the same for every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bench_worker.kernel_report import Asked, Table
from bench_worker.result import Result
from webapp.experiments import attempts
from webapp.experiments.models import Experiment, Kind
from webapp.traces.recording_store import recording_files
from webapp.traces.store import trace_files

#: What the table takes for one size at most: rounds over all backends, and tuning ``auto``.
SECONDS_A_SIZE = 60.0


@dataclass(frozen=True)
class Job:
    """``arguments``: of the measuring program, for a row and the directory of its attempt; what the program reads
    beside the row's document is put there. ``seconds`` bounds the measuring itself. ``outcome``: what its result is."""

    arguments: Callable[[Experiment, Path], list[str]]
    seconds: Callable[[Experiment], float]
    outcome: type[Result] | type[Table]


def of(row: Experiment) -> Job:
    return JOBS[Kind(row.kind)]


def _run(row: Experiment, directory: Path) -> list[str]:
    file, result = directory / attempts.EXPERIMENT, directory / attempts.RESULT
    traces, recordings = directory / attempts.TRACES, directory / attempts.RECORDINGS
    for folder in (traces, recordings):
        folder.mkdir(exist_ok=True)
    workload, conditions = row.document["base"]["workload"], row.document["conditions"]
    most = max([workload["requests"], *(condition["requests"] or 0 for condition in conditions)])
    trace_files(workload["trace"], traces, most)
    recording_files(row.recordings.defer("counts"), recordings)
    library = ["--traces", str(traces), "--recordings", str(recordings)]
    return ["run", str(file), "--out", str(result), *library, "--stop-on-eof"]


def _run_seconds(row: Experiment) -> float:
    return float(row.document["measure"]["max_seconds"])


def _kernels(row: Experiment, directory: Path) -> list[str]:
    return [*kernels_command(row), "--out", str(directory / attempts.RESULT)]


def kernels_command(row: Experiment) -> list[str]:
    """The arguments that measure the same table again."""
    asked = Asked.model_validate(row.document)
    options = {
        "--model": asked.model,
        "--tokens": ",".join(map(str, asked.tokens)),
        "--dtype": asked.dtype,
        "--load": asked.load,
        "--quantization": asked.quantization,
    }
    return ["kernels", *chain.from_iterable(options.items())]


def _kernels_seconds(row: Experiment) -> float:
    return SECONDS_A_SIZE * len(row.document["tokens"])


JOBS = {
    Kind.EXPERIMENT: Job(_run, _run_seconds, Result),
    Kind.KERNELS: Job(_kernels, _kernels_seconds, Table),
}
