"""What commands share that start themselves once more for each of several ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from bench_worker.commands.common import BAD_EXPERIMENT, DOES_NOT_FIT, DONE, UNAVAILABLE, fail
from bench_worker.errors import DoesNotFit, SpecError, Unavailable
from bench_worker.parallel import launch, world


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """The options that name the hosts which take part."""
    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="real ranks: hosts that take part")
    parser.add_argument("--node-rank", type=int, default=0, metavar="I", help="which of them this is, from 0")
    parser.add_argument("--rdzv", metavar="HOST:PORT", help="where they meet: a free port of host 0")


def hosts_of(args: argparse.Namespace) -> launch.Hosts:
    """The hosts that the command line names. Raises `SpecError`."""
    if args.nnodes == 1 and args.rdzv is None and args.node_rank == 0:
        return launch.Hosts()
    if args.rdzv is None:
        raise SpecError("--rdzv", None, "is missing; several hosts meet at a HOST:PORT of the first of them")
    if not 0 <= args.node_rank < args.nnodes:
        message = f"{args.node_rank} is not one of the {args.nnodes} hosts, which are counted from 0"
        raise SpecError("--node-rank", args.node_rank, message)
    return launch.Hosts(args.nnodes, args.node_rank, *launch.parse_address(args.rdzv))


def start_ranks(arguments: Sequence[str], ranks: int, hosts: launch.Hosts, hangs_after_s: float) -> int:
    """Run the program with ``arguments`` as so many ranks; the exit code."""
    try:
        launch.launch(arguments, ranks, hosts, hangs_after_s)
    except launch.RanksFailed as error:
        return fail(error.code, str(error))
    return DONE


def as_rank(place: world.Place, ranks: int, field: str, work: Callable[[world.World], int]) -> int:
    """Do ``work`` as one of ``ranks``, which ``field`` asks for; the exit code. Whoever watches says what went wrong,
    once for all ranks."""
    world.tie_to_launcher()
    world.pin(place)
    trail = world.trail_of(place)
    try:
        with world.come_together(place, ranks, field, trail) as crew:
            code = work(crew)
        if trail is not None:
            trail.end()
        return code
    except (SpecError, DoesNotFit, Unavailable) as error:
        if trail is None:
            raise
        trail.fail("\n".join(map(str, error.errors if isinstance(error, SpecError) else [error])))
        return {SpecError: BAD_EXPERIMENT, DoesNotFit: DOES_NOT_FIT, Unavailable: UNAVAILABLE}[type(error)]
