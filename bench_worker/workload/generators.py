"""Built-in request traces: seeded draws with the quantiles of published ones.

The table `trace_quantiles.toml` holds, for each trace, quantiles of prompt length, output length and the gap between
arrivals, and the rank correlation of the two lengths. `tools/derive_trace_quantiles.py` derives it and prints how far
it is from the original. Gaps are drawn independently of each other and of the lengths.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from bench_worker.workload import Request

__all__ = ["GENERATORS", "Generator", "generate"]

TABLE = Path(__file__).with_name("trace_quantiles.toml")


@dataclass(frozen=True, eq=False)
class Generator:
    """One trace's shape. Arrays are quantile functions: values at ``probability``, all of shape [Q], rising.

    ``correlation`` is Spearman's rank correlation of prompt and output length; ``source`` names the original.
    """

    source: str
    probability: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    gap_s: np.ndarray
    correlation: float

    def generate(self, count: int, seed: int) -> list[Request]:
        """``count`` requests; the first arrives at 0. The same seed gives the same trace, a smaller count its head.

        Inverse-transform sampling. The two lengths are joined by a Gaussian copula, whose Pearson correlation for
        Spearman's ρ is 2·sin(π·ρ/6) (Kruskal, "Ordinal measures of association", 1958).
        """
        normal = np.random.default_rng(seed).standard_normal((count, 3))  # one row a request, so heads agree
        pearson = 2 * math.sin(math.pi * self.correlation / 6)
        normal[:, 1] = pearson * normal[:, 0] + math.sqrt(1 - pearson**2) * normal[:, 1]
        cdf = NormalDist().cdf
        uniform = np.fromiter(map(cdf, normal.ravel().tolist()), float, normal.size).reshape(normal.shape)

        prompt = np.rint(np.interp(uniform[:, 0], self.probability, self.prompt_tokens)).astype(int)
        output = np.rint(np.interp(uniform[:, 1], self.probability, self.output_tokens)).astype(int)
        gap_s = np.interp(uniform[:, 2], self.probability, self.gap_s)
        gap_s[:1] = 0.0
        return [Request(*row) for row in zip(np.cumsum(gap_s).tolist(), prompt.tolist(), output.tolist(), strict=True)]


def load_generators(table: Mapping[str, Any]) -> dict[str, Generator]:
    """The generators of a decoded table, by trace."""
    probability = np.array(table["probability"])
    return {
        name: Generator(
            source=shape["source"],
            probability=probability,
            prompt_tokens=np.array(shape["prompt_tokens"]),
            output_tokens=np.array(shape["output_tokens"]),
            gap_s=np.array(shape["gap_s"]),
            correlation=shape["correlation"],
        )
        for name, shape in table.items()
        if name != "probability"
    }


#: The built-in traces by name.
GENERATORS: Mapping[str, Generator] = load_generators(tomllib.loads(TABLE.read_text(encoding="utf-8")))


def generate(name: str, count: int, seed: int) -> list[Request]:
    """``count`` requests of the built-in trace ``name``. Raises ``KeyError`` for a name outside `GENERATORS`."""
    return GENERATORS[name].generate(count, seed)
