"""The command line: ``run | fit | recording | calibrate | kernels | models | machine | show``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from bench_worker import devices, fitting, models, show
from bench_worker.allocators import restart_with_huge_pages, settle_allocators
from bench_worker.errors import DoesNotFit, SpecError, Unavailable
from bench_worker.planning import Condition, recordings_of, refuse_what_does_not_fit, requests_of
from bench_worker.result import Run
from bench_worker.spec import Library, parse_experiment, read_deployment, read_experiment
from bench_worker.workload.recording_files import is_dump
from bench_worker.workload.recordings import Recording, RecordingError, read_recording, write_recording

DONE, FAILED, BAD_EXPERIMENT, DOES_NOT_FIT, UNAVAILABLE, CANCELED = 0, 1, 2, 3, 4, 130


class StderrReport:
    """Progress as JSON lines on standard error, at most a few a second."""

    def __init__(self) -> None:
        self._last, self._phase = 0.0, ""

    def progress(self, phase: str, done: int, total: int, variant: str = "", condition: str = "") -> None:
        now = time.monotonic()
        if phase == self._phase and now - self._last < 0.3 and done != total:
            return
        self._last, self._phase = now, phase
        emit(event="progress", phase=phase, done=done, total=total, variant=variant, condition=condition)

    def finished(self, run: Run) -> None:
        emit(event="run", run=run.model_dump(mode="json", include={"variant", "condition", "status", "summary"}))


def emit(**line: Any) -> None:
    sys.stderr.write(json.dumps(line) + "\n")  # at once, so that another process's line can't come between
    sys.stderr.flush()


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        return int(args.command(args))
    except SpecError as error:
        return fail(BAD_EXPERIMENT, *map(str, error.errors))
    except DoesNotFit as error:
        return fail(DOES_NOT_FIT, str(error))
    except Unavailable as error:
        return fail(UNAVAILABLE, str(error))
    except KeyboardInterrupt:
        return fail(CANCELED, "canceled")


def fail(code: int, *messages: str) -> int:
    """Say what went wrong, one sentence a line: to a person in words, to a program as an event of the protocol."""
    message = "\n".join(messages)
    if sys.stderr.isatty():
        print(message, file=sys.stderr)
    else:
        emit(event="error", message=message)
    return code


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench_worker", description="Measures Mixture-of-Experts layers.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    run = command("run", run_command, "Measure an experiment file and write its result.")
    run.add_argument("--out", type=Path, metavar="RESULT", help="where the result goes; standard output without it")
    run.add_argument("--stop-on-eof", action="store_true", help="cancel when standard input closes")
    fit = command("fit", fit_command, "Say what an experiment needs to be deployed, and to be measured here.")
    fit.add_argument("--device", metavar="NAME", help=f"deployed on this one instead: {', '.join(devices.DEVICES)}")
    for sub in (run, fit):
        sub.add_argument("file", type=Path, metavar="FILE")
        sub.add_argument("--traces", type=Path, metavar="DIR", help="folder of NAME.csv files that FILE may name")
        sub.add_argument("--recordings", type=Path, metavar="DIR", help="folder of NAME.npz files that FILE may name")
    load = command("recording", recording_command, "Make a recording of expert load from the files of others.")
    load.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="several where SGLang wrote one for each rank"
    )
    load.add_argument("--out", type=Path, metavar="NAME.npz", help="where it goes; without it, it is only looked at")
    load.add_argument(
        "--experts", type=int, metavar="N", help="experts of the model, where FILE leaves that to be guessed"
    )
    listing = command("models", models_command, "List the model presets.")
    machine = command("machine", machine_command, "Describe this machine.")
    for sub in (fit, load, listing, machine):
        sub.add_argument("--json", action="store_true", help="the same figures for a program")
    ceilings = command("calibrate", calibrate_command, "Measure what this device can do at best, and keep it.")
    ceilings.add_argument("--threads", type=int, help="CPU threads; every processor without it")
    table = command("kernels", kernels_command, "Measure every expert backend against the device's limits.")
    table.add_argument("--model", default="qwen3-30b-a3b", help="a preset, or the path of a config.json")
    table.add_argument("--tokens", default="1,8,64,512,2048", metavar="N,N,…", help="tokens of a step")
    table.add_argument("--dtype", default="bfloat16")
    table.add_argument("--load", default="uniform", help="uniform or zipf")
    table.add_argument(
        "--out", type=Path, metavar="FILE", help="calibrate first, and write the table with its machine and ceilings"
    )
    for sub in (ceilings, table):
        sub.add_argument("--json", action="store_true", help="the same figures for a program")
    shown = command("show", show_command, "Print the runs of a result file, or one part of it as JSON.")
    shown.add_argument("file", type=Path, metavar="RESULT")
    shown.add_argument("part", nargs="?", metavar="PART", help="a dotted name, such as runs.0.steps.step_us")
    return top


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
    return _written(args.out, document)


def fit_command(args: argparse.Namespace) -> int:
    files, recordings = files_in(args.traces, "--traces", ".csv"), files_in(args.recordings, "--recordings", ".npz")
    try:
        device = None if args.device is None else devices.named(args.device)
    except ValueError as error:
        raise SpecError("--device", args.device, str(error)) from None
    library = Library(frozenset(files), frozenset(recordings), allow_paths=True)
    experiment = read_deployment(args.file, replace(library, measures=False))
    recordings_of(experiment.runs(), recordings, allow_paths=True)
    from bench_worker import environment  # here: it imports torch

    available = environment.available_bytes(environment.device())
    planned = [list(runs) for _, runs in groupby(experiment.runs(), key=lambda run: run.condition)]
    conditions = [
        Condition(runs, requests_of(runs[0].spec.workload, files, allow_paths=True), batches=[]) for runs in planned
    ]
    try:
        parse_experiment(json.dumps(experiment.document()).encode(), library)
        refuse_what_does_not_fit(conditions, available)
        refused = None
    except (SpecError, DoesNotFit) as error:
        refused = str(error)
    found = fitting.document(conditions, available, device, refused)
    print(json.dumps(found, indent=1) if args.json else fitting.as_text(found))
    return DONE


def recording_command(args: argparse.Namespace) -> int:
    if args.out is not None:
        refuse_unwritable(args.out)
    try:
        made = _read_recording(args.files, args.experts)
        if args.out is not None:
            write_recording(args.out, made)
    except RecordingError as error:
        raise SpecError("recording", str(args.files[0]), str(error)) from None
    except OSError as error:
        return fail(FAILED, f"{args.out} can't be written: {error.strerror}")
    imbalance = (made.shares.max(axis=1) * made.num_experts).tolist()
    if args.json:
        found = {
            "layers": made.layers.tolist(), "experts": made.num_experts, "top_k": made.top_k,
            "tokens": None if made.ids is None else len(made.ids), "dropped_rows": made.dropped_rows,
            "sequences": None if made.lengths is None else len(made.lengths), "imbalance": imbalance,
            "counts": made.counts.tolist(), "sha256": made.content_hash,
        }  # fmt: skip
        print(json.dumps(found))
        return DONE
    k = "an unknown number of experts" if made.top_k is None else f"{made.top_k} experts"
    print(f"{made.described()}; {k} a token; hottest expert {min(imbalance):.2f} to {max(imbalance):.2f} × the mean")
    if made.dropped_rows:
        print(f"{made.dropped_rows:,} rows of a profiling pass were left out.")
    return DONE


def _read_recording(paths: list[Path], num_experts: int | None) -> Recording:
    if all(map(is_dump, paths)):
        try:
            from bench_worker.workload.sglang_dumps import read_dumps  # here: it imports torch
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise Unavailable(
                f"{paths[0].name}: was written with torch.save, and only a machine with torch reads it; there, "
                "python -m bench_worker recording FILE.pt --out NAME.npz makes a file that every machine reads"
            ) from None
        return read_dumps(paths)
    if len(paths) > 1:
        raise RecordingError(f"{paths[1].name}: one file makes a recording, unless SGLang wrote one for each rank")
    return read_recording(paths[0], num_experts=num_experts)


def models_command(args: argparse.Namespace) -> int:
    presets = models.presets()
    if args.json:
        print(json.dumps([m.model_dump(mode="json") | {"parameters": m.parameters().total} for m in presets.values()]))
        return DONE
    for model in presets.values():
        count = model.parameters()
        print(
            f"{model.name:18} {count.total / 1e9:6.1f}B, {count.active / 1e9:5.1f}B active   "
            f"{model.moe_layers} MoE layers of {model.experts} experts, top {model.top_k}"
        )
    return DONE


def machine_command(args: argparse.Namespace) -> int:
    settle_allocators()  # as `run` does: pinned threads are part of the fingerprint
    from bench_worker import environment

    machine = environment.machine()
    if args.json:
        from bench_worker.kernels import registry  # here: it imports DeepSpeed

        print(json.dumps(machine | {"backends": registry.report(environment.device())}))
    else:
        print(f"{machine['name']} ({machine['fingerprint']}), {_gb(machine['memory_bytes'])}")
    return DONE


def calibrate_command(args: argparse.Namespace) -> int:
    if args.threads is not None and not 1 <= args.threads <= 1024:
        raise SpecError("--threads", args.threads, f"{args.threads} is not from 1 to 1024")
    settle_allocators()

    import torch

    from bench_worker import calibrate, ceilings, environment

    torch.set_num_threads(args.threads or torch.get_num_threads())
    machine = environment.machine()
    found = calibrate.calibrate(environment.device(), torch.get_num_threads())
    kept = ceilings.keep(environment.device_fingerprint(machine), found)
    if args.json:
        names = {name: machine[name] for name in ("name", "fingerprint")}
        print(json.dumps({**names, "kept": kept and str(kept), "ceilings": found.model_dump(mode="json")}))
        return DONE
    print(f"{machine['name']} ({machine['fingerprint']})\n{ceilings.as_text(found)}")
    print(f"Kept in {kept}" if kept else f"They can't be kept: {ceilings.cache_folder()} can't be written to.")
    return DONE


def kernels_command(args: argparse.Namespace) -> int:
    if args.out is not None:
        refuse_unwritable(args.out)
    settle_allocators()

    import torch

    from bench_worker import environment, kernel_report, kernel_table
    from bench_worker.calibrate import calibrate_apart

    tokens, threads = kernel_report.tokens_of(args.tokens), torch.get_num_threads()
    spec = kernel_report.spec_of(args.model, tokens, args.dtype, args.load)
    if args.out is None:
        table = kernel_table.measure(spec, tokens, environment.device())
        print(json.dumps([row.model_dump() for row in table.rows]) if args.json else kernel_report.as_text(table))
        return DONE
    report = StderrReport()
    report.progress("calibrate", 0, 1)
    ceilings = {str(threads): calibrate_apart(threads)}
    report.progress("prepare", 0, 1)
    table = kernel_table.measure(
        spec, tokens, environment.device(), lambda done: report.progress("sizes", done, len(tokens))
    )
    return _written(args.out, table.model_copy(update={"ceilings": ceilings}).model_dump_json())


def show_command(args: argparse.Namespace) -> int:
    try:
        data = args.file.read_bytes()
    except OSError as error:
        raise SpecError("result", str(args.file), f"{args.file} can't be read: {error.strerror}") from None
    result = show.read_result(data, str(args.file))
    if args.part is None:
        print(show.overview(result))
    else:
        print(json.dumps(show.part(result.model_dump(mode="json", by_alias=True), args.part)))
    return DONE


def files_in(folder: Path | None, option: str, suffix: str) -> dict[str, Path]:
    """The traces or recordings that ``option`` offers, by name."""
    if folder is None:
        return {}
    if not folder.is_dir():
        raise SpecError(option, str(folder), f"{folder} is not a folder")
    return {path.stem: path for path in folder.glob(f"*{suffix}")}


def refuse_unwritable(out: Path) -> None:
    """Raise `SpecError` for a place where no result can be written: before hours of measuring, not after."""
    if not out.parent.is_dir():
        raise SpecError("--out", str(out), f"{out.parent} is not a folder")
    if out.is_dir():
        raise SpecError("--out", str(out), f"{out} is a folder; name a file in it")
    if not os.access(out.parent, os.W_OK):
        raise SpecError("--out", str(out), f"{out.parent} can't be written to")


def _written(out: Path, document: str) -> int:
    """Write ``document`` so that a reader never sees half of it."""
    partial = out.with_name(f"{out.name}.part")
    try:
        partial.write_text(document, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        return fail(FAILED, f"{out} can't be written: {error.strerror}")
    return DONE


def _gb(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


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


def entry() -> NoReturn:
    if sys.argv[1:2] in (["run"], ["calibrate"], ["kernels"], ["machine"]):
        restart_with_huge_pages()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal may be ASCII only
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone: `… models | head -1`
        code = FAILED
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    entry()
