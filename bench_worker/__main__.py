"""The command line: ``run | fit | recording | calibrate | kernels | models | machine | show``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from bench_worker import devices
from bench_worker.allocators import restart_with_huge_pages
from bench_worker.commands.common import BAD_EXPERIMENT, CANCELED, DOES_NOT_FIT, FAILED, UNAVAILABLE, fail
from bench_worker.commands.device import calibrate_command, kernels_command, machine_command
from bench_worker.commands.fit import fit_command
from bench_worker.commands.ranks import add_hosts
from bench_worker.commands.reading import models_command, show_command
from bench_worker.commands.recording import recording_command
from bench_worker.commands.run import run_command
from bench_worker.errors import DoesNotFit, SpecError, Unavailable


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


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench_worker", description="Measures Mixture-of-Experts layers.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        return sub

    run = command("run", run_command, "Measure an experiment file and write its result.")
    run.add_argument("--out", type=Path, metavar="RESULT", help="where the result goes; standard output without it")
    add_hosts(run)
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
    ceilings.add_argument("--ranks", type=int, metavar="N", help="measure the network between so many ranks instead")
    ceilings.add_argument("--out", type=Path, metavar="NAME.toml", help="with --ranks: the topology file to write")
    add_hosts(ceilings)
    ceilings.add_argument("--threads", type=int, help="CPU threads; every processor without it")
    table = command("kernels", kernels_command, "Measure every expert backend against the device's limits.")
    table.add_argument("--model", default="qwen3-30b-a3b", help="a preset, or the path of a config.json")
    table.add_argument("--tokens", default="1,8,64,512,2048", metavar="N,N,…", help="tokens of a step")
    table.add_argument("--dtype", default="bfloat16")
    table.add_argument("--load", default="uniform", help="uniform or zipf")
    table.add_argument("--quantization", default="none", help="format of the experts: none, int8 or int4")
    table.add_argument(
        "--out", type=Path, metavar="FILE", help="calibrate first, and write the table with its machine and ceilings"
    )
    for sub in (ceilings, table):
        sub.add_argument("--json", action="store_true", help="the same figures for a program")
    shown = command("show", show_command, "Print the runs of a result file, or one part of it as JSON.")
    shown.add_argument("file", type=Path, metavar="RESULT")
    shown.add_argument("part", nargs="?", metavar="PART", help="a dotted name, such as runs.0.steps.step_us")
    shown.add_argument("--perfetto", metavar="STEPS", help="these steps, such as 0,5-9, as a trace for ui.perfetto.dev")
    shown.add_argument("--run", type=int, default=0, metavar="N", help="the run whose steps; the first without it")
    return top


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
