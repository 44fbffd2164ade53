"""``models`` and ``show``: print what is there already."""

from __future__ import annotations

import argparse
import json

from bench_worker import models, show
from bench_worker.commands.common import DONE
from bench_worker.errors import SpecError


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
    if args.part is None:
        print(show.overview(result))
    else:
        print(json.dumps(show.part(result.model_dump(mode="json", by_alias=True), args.part)))
    return DONE
