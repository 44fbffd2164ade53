"""What a slow wire between two hosts costs, against what its rate predicts. Quoted in docs/parallel.md."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.bench.host_exchange import KINDS, ROUNDS, ROWS_BYTES
from tools.bench.two_hosts import Host, limit, ranks_say, two_hosts, why_not

RATE_MBIT, STEPS = 200, 12
WAYS = {
    "one": "Rank 0 has all tokens: each exchange has one direction",
    "both": "Both ranks have tokens: rows go both ways at once",
}
#: Rows of 8 KB and little to compute.
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 64,
    "intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 4096, "vocab_size": 256,
    "tie_word_embeddings": False,
}  # fmt: skip


def section() -> None:
    """The same steps over an open wire and over one of ``RATE_MBIT``."""
    if reason := why_not():
        print(f"Two hosts can't be made here: {reason}")
        return
    print(f"Two hosts (network namespaces), EP = 2, {STEPS} steps, medians in ms; wire limited to {RATE_MBIT} Mbit/s")
    with two_hosts() as hosts:
        found = {ways: [measured(hosts, STEPS, ways)] for ways in WAYS}
        limit(hosts, f"{RATE_MBIT}mbit")
        for ways, own in found.items():
            own.append(measured(hosts, STEPS, ways))
        exchanges = {
            (kind, ways): ranks_say(hosts, "tools.bench.host_exchange", kind, ways) for kind in KINDS for ways in WAYS
        }
    for ways, (open_wire, slow) in found.items():
        print(f"\n{WAYS[ways]}")
        print(f"{'rank':>6}{'stage':>18}{'open':>10}{'limited':>10}{'grew by':>10}{'predicted':>11}{'ratio':>8}")
        for rank, (before, after) in enumerate(zip(open_wire, slow, strict=True)):
            _print(rank, before, after)
    _print_exchanges(exchanges)


def _print_exchanges(exchanges: dict[tuple[str, str], list[Any]]) -> None:
    """With whose all-to-all, when the rows of each rank were on the wire and its exchange ended."""
    print(f"\nOne exchange of {ROWS_BYTES:,} bytes a way, ms since rank 1 came, which is the last; ", end="")
    print(f"{ROWS_BYTES * 8 / RATE_MBIT / 1e3:.1f} ms by bytes over rate; medians of {ROUNDS}")
    print(f"{'all-to-all':>12}{'ways':>6}{'rank':>6}{'rows leave from':>17}{'to':>8}{'ends':>8}")
    for (kind, ways), (first, last) in exchanges.items():
        for rank, rounds in enumerate((first, last)):
            own = [
                [ms - late["came_ms"] for ms in (*one["on_wire_ms"], one["ended_ms"])]
                for one, late in zip(rounds, last, strict=True)
            ]
            begin, end, ended = (statistics.median(column) for column in zip(*own, strict=True))
            leave = f"{begin:>17.1f}{end:>8.1f}" if ways == "both" or rank == 0 else f"{'none':>17}{'':>8}"
            print(f"{kind:>12}{ways:>6}{rank:>6}{leave}{ended:>8.1f}")


def _print(rank: int, before: dict[str, Any], after: dict[str, Any]) -> None:
    headers = after["wire_bytes"] / after["counted_bytes"]
    predicted_ms = after["busiest_way_bytes"] * headers * 8 / RATE_MBIT / 1e3
    for stage, us in before["stages_us"].items():
        grown = (after["stages_us"][stage] - us) / 1e3
        expected = "" if stage == "experts" else f"{predicted_ms:>11.2f}{grown / predicted_ms:>8.2f}"
        print(f"{rank:>6}{stage:>18}{us / 1e3:>10.2f}{after['stages_us'][stage] / 1e3:>10.2f}{grown:>10.2f}{expected}")
    print(f"{rank:>6}  {after['counted_bytes']:,} bytes counted, {after['wire_bytes']:,} on the wire: {headers:.3f}")


def measured(hosts: Sequence[Host], steps: int, ways: str) -> list[dict[str, Any]]:
    """What each of two ranks has to say of the same steps, one on each host."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "rows.json"
        config.write_text(json.dumps(CONFIG))
        return ranks_say(hosts, "tools.bench.host_rank", str(config), str(steps), ways)
