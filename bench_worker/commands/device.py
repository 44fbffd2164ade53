"""``machine``, ``calibrate`` and ``kernels``: what this machine is, and what it can do."""

from __future__ import annotations

import argparse
import json

from bench_worker.allocators import settle_allocators
from bench_worker.commands.common import DONE, StderrReport, refuse_unwritable, written
from bench_worker.commands.ranks import as_rank, hosts_of, start_ranks
from bench_worker.errors import SpecError
from bench_worker.parallel import launch, world


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
    if args.ranks is not None:
        return _calibrate_network(args)
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


def _calibrate_network(args: argparse.Namespace) -> int:
    """Sweep the all-to-all of real ranks, and write what it found as a topology."""
    if args.out is None:
        raise SpecError("--out", None, "is missing; with --ranks, it names the topology file to write")
    refuse_unwritable(args.out)
    hosts, place = hosts_of(args), world.place_of_this_process()
    if not 2 <= args.ranks <= 1024 or args.ranks % hosts.count:
        message = f"{args.ranks} ranks can't exchange anything on {hosts.count} hosts; take 2 to 1024, as many on each"
        raise SpecError("--ranks", args.ranks, message)
    if place is None:
        arguments = ["calibrate", "--ranks", str(args.ranks), "--out", str(args.out), "--nnodes", str(hosts.count)]
        if args.rdzv is not None:
            arguments += ["--rdzv", args.rdzv]
        return start_ranks(arguments, args.ranks, hosts, launch.HANGS_AFTER_S)
    return as_rank(place, args.ranks, "--ranks", lambda crew: _sweep(args, crew))


def _sweep(args: argparse.Namespace, crew: world.World) -> int:
    from bench_worker import environment
    from bench_worker.parallel import sweep

    tables = sweep.sweep(crew, args.nnodes)
    if not crew.is_first:
        return DONE
    code = written(args.out, sweep.as_toml(tables, args.out.stem, environment.machine()["name"]))
    for domain, table in tables.items() if code == DONE else []:
        print(f"{domain}, {table.ranks} ranks")
        for size, us in zip(table.bytes, table.us, strict=True):
            print(f"  {size:14,.0f} bytes {us:12,.1f} µs")
    return code


def kernels_command(args: argparse.Namespace) -> int:
    if args.out is not None:
        refuse_unwritable(args.out)
    settle_allocators()

    import torch

    from bench_worker import environment, kernel_report, kernel_table
    from bench_worker.calibrate import calibrate_apart

    tokens, threads = kernel_report.tokens_of(args.tokens), torch.get_num_threads()
    spec = kernel_report.spec_of(args.model, tokens, args.dtype, args.load, args.quantization)
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
