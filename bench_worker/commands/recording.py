"""``recording``: make a recording of expert load from the files of others."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench_worker.commands.common import DONE, FAILED, fail, refuse_unwritable
from bench_worker.errors import SpecError, Unavailable
from bench_worker.workload.recording_files import is_dump
from bench_worker.workload.recordings import Recording, RecordingError, read_recording, write_recording


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
