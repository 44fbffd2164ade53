"""``models`` and ``show``: print what is there already."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bench_worker import models, perfetto, show
from bench_worker.commands.common import DONE
from bench_worker.errors import SpecError
from bench_worker.result import Result


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


def show_command(args: argparse.Namespace) -> int:
    try:
        data = args.file.read_bytes()
    except OSError as error:
        raise SpecError("result", str(args.file), f"{args.file} can't be read: {error.strerror}") from None
    result = show.read_result(data, str(args.file))
    if args.perfetto is not None:
        print(json.dumps(_trace(result, args.run, args.perfetto)))
    elif args.part is None:
        print(show.overview(result))
    else:
        print(json.dumps(show.part(result.model_dump(mode="json", by_alias=True), args.part)))
    return DONE


def _trace(result: Result, number: int, steps: str) -> dict[str, Any]:
    if not 0 <= number < len(result.runs):
        raise SpecError("--run", number, f"{number} is not a run of this result, which are 0 to {len(result.runs) - 1}")
    return perfetto.trace(result.runs[number], steps)
