"""Derive `bench_worker/workload/trace_quantiles.toml` from the public Azure traces and print how close it is.

    python -m tools.derive_trace_quantiles FOLDER

FOLDER holds ``azure_llm_2023_conv.csv`` and ``azure_llm_2023_code.csv``, the files ``AzureLLMInferenceTrace_conv.csv``
and ``AzureLLMInferenceTrace_code.csv`` of https://github.com/Azure/AzurePublicDataset (2023, CC-BY-4.0).
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from bench_worker.workload.generators import TABLE, load_generators
from bench_worker.workload.requests import Request, read_trace

TRACES = {"conversation": "conv", "code": "code"}

#: Every 2%, and more points in the tails, where the sum of a heavy-tailed trace lies.
PROBABILITY = sorted(
    {*(round(0.02 * i, 2) for i in range(51)), 0.005, 0.01}
    | {0.985, 0.99, 0.9925, 0.995, 0.996, 0.997, 0.998, 0.999, 0.9995, 0.9998}
)

HEADER = """\
# Quantiles of public request traces: values at each `probability`, and Spearman's correlation of prompt and output.
# Written by tools/derive_trace_quantiles.py from the Azure LLM inference traces 2023,
# https://github.com/Azure/AzurePublicDataset, licensed CC-BY-4.0. Lengths in tokens; gap_s: seconds between arrivals.
"""


def columns(requests: list[Request]) -> dict[str, np.ndarray]:
    """Prompt lengths [N], output lengths [N] and gaps between arrivals [N − 1]."""
    arrival_s, prompt, output = (np.array(column) for column in zip(*requests, strict=True))
    return {"prompt_tokens": prompt, "output_tokens": output, "gap_s": np.diff(arrival_s)}


def derive(name: str, file: str, requests: list[Request]) -> str:
    """The TOML section of one trace."""
    columns_ = columns(requests)
    rho = spearmanr(columns_["prompt_tokens"], columns_["output_tokens"]).statistic
    quantiles = {key: np.quantile(values, PROBABILITY) for key, values in columns_.items()}
    lines = [
        f"[{name}]",
        f'source = "Azure/AzurePublicDataset, {file} (2023), {len(requests):,} requests, CC-BY-4.0"',
        f"correlation = {rho:.4f}",
        *(f"{key} = {np.rint(quantiles[key]).astype(int).tolist()}" for key in ("prompt_tokens", "output_tokens")),
        f"gap_s = {[float(f'{value:.4g}') for value in quantiles['gap_s']]}",
    ]
    return "\n".join(lines) + "\n"


def errors(original: dict[str, np.ndarray], generated: dict[str, np.ndarray]) -> list[str]:
    """One line a column: relative error of the mean and percentiles, and the largest distance of the two CDFs."""
    lines = []
    for key, values in original.items():
        drawn = generated[key]
        at = np.unique(values)
        cdfs = [np.searchsorted(np.sort(sample), at, side="right") / len(sample) for sample in (values, drawn)]
        figures = {"mean": drawn.mean() / values.mean() - 1}
        figures |= {f"p{p}": np.percentile(drawn, p) / np.percentile(values, p) - 1 for p in (10, 50, 90, 99)}
        shown = "  ".join(f"{label} {error:+6.2%}" for label, error in figures.items())
        lines.append(f"  {key:<14} {shown}  CDF within {np.abs(cdfs[0] - cdfs[1]).max():.2%}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder

    originals = {name: list(read_trace(folder / f"azure_llm_2023_{part}.csv")) for name, part in TRACES.items()}
    sections = [f"probability = {PROBABILITY}\n"]
    for name, part in TRACES.items():
        sections.append(derive(name, f"AzureLLMInferenceTrace_{part}.csv", originals[name]))
    table = HEADER + "\n".join(sections)
    TABLE.write_text(table, encoding="utf-8")

    for name, generator in load_generators(tomllib.loads(table)).items():
        drawn = generator.generate(500_000, seed=0)
        print(f"{name}: 500,000 generated against {len(originals[name]):,} original requests")
        print("\n".join(errors(columns(originals[name]), columns(drawn))))
        rho = [
            spearmanr([r[1] for r in sample], [r[2] for r in sample]).statistic for sample in (originals[name], drawn)
        ]
        print(f"  Spearman's correlation {rho[0]:.4f} -> {rho[1]:.4f}")


if __name__ == "__main__":
    main()
