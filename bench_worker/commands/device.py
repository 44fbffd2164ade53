"""``machine``, ``calibrate`` and ``kernels``: what this machine is, and what it can do."""

from __future__ import annotations

import argparse
import json

from bench_worker.allocators import settle_allocators
from bench_worker.commands.common import DONE, StderrReport, refuse_unwritable, written
from bench_worker.errors import SpecError


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
    return written(args.out, table.model_copy(update={"ceilings": ceilings}).model_dump_json())


def _gb(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
