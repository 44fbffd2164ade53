"""``fit``: say what an experiment needs to be deployed, and to be measured here."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import groupby

from bench_worker import devices, fitting
from bench_worker.commands.common import DONE, files_in
from bench_worker.errors import DoesNotFit, SpecError
from bench_worker.planning import Condition, recordings_of, refuse_what_does_not_fit, requests_of
from bench_worker.spec import Library, parse_experiment, read_deployment


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

    here = environment.device()
    available, on_gpu = environment.available_bytes(here), here.type == "cuda"
    planned = [list(runs) for _, runs in groupby(experiment.runs(), key=lambda run: run.condition)]
    conditions = [
        Condition(runs, requests_of(runs[0].spec.workload, files, allow_paths=True), batches=[]) for runs in planned
    ]
    try:
        parse_experiment(json.dumps(experiment.document()).encode(), library)
        refuse_what_does_not_fit(conditions, available, on_gpu=on_gpu)
        refused = None
    except (SpecError, DoesNotFit) as error:
        refused = str(error)
    found = fitting.document(conditions, available, device, refused, on_gpu=on_gpu)
    print(json.dumps(found, indent=1) if args.json else fitting.as_text(found))
    return DONE
