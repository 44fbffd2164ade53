"""Draws the pictures of docs/routing.md from a result of samples/seven-strategies.json, and prints the tables there.

``python -m tools.routing_pictures RESULT``, with a result file of `bench_worker run`.
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

from bench_worker.result import Result, Run
from bench_worker.strategies import STRATEGIES
from webapp.experiments import routing
from webapp.experiments.routing import Routed
from webapp.ui import pictures

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
#: The corner that is drawn: several requests at once, and few enough steps to tell them apart.
DRAWN = "4×128"
#: The corner whose longest steps show the cost of a full batch.
FULL = "4×2048"
MAP_WIDTH, GAP, CAPTION = 300, 20, 18
WIDTH, HEIGHT = MAP_WIDTH + 2 * (GAP + pictures.BARS_WIDTH), pictures.HEAT_HEIGHT + CAPTION
RULES = """
svg { font-family: system-ui, sans-serif; }
.paper { fill: var(--paper); }
.heatmap path { fill: none; stroke-width: 1.02; }
.blank { fill: var(--sunken); }
.histogram rect { fill: var(--stage-experts); }
.histogram .reach { fill: none; }
.axis { fill: none; stroke: var(--line-strong); }
text { fill: var(--muted); font-size: 10px; }
.histogram text { text-anchor: middle; }
"""


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m tools.routing_pictures RESULT", file=sys.stderr)
        return 2
    result = Result.model_validate_json(Path(sys.argv[1]).read_bytes())
    corners = list(dict.fromkeys(run.condition for run in result.runs))
    runs = {(run.variant, run.condition): run for run in result.runs}
    section = routing.section((_read(runs[name, DRAWN]) for name in STRATEGIES), corners, DRAWN, by_corner=False)
    assert section is not None
    for row in section.rows:
        (IMAGES / f"routing-{row.name}.svg").write_text(picture(row))
    machine = result.environment
    print(f"{machine['name']}, torch {machine['versions']['torch']}, load {machine['state']['load_average'][0]:.1f}\n")
    _print_steps(runs, section, corners)
    _print_full_batches(runs)
    return 0


def picture(row: Routed) -> str:
    """A run's heat map and histograms beside one another, light or dark as the reader's system."""
    parts = [
        (0, MAP_WIDTH, pictures.heatmap(row.maps[0].levels, row.maps[0].label), row.maps[0].caption),
        (MAP_WIDTH + GAP, pictures.BARS_WIDTH, pictures.histogram(row.per_token_bars, ""), "experts a token"),
        (WIDTH - pictures.BARS_WIDTH, pictures.BARS_WIDTH, pictures.histogram(row.row_bars, ""), "rows an expert"),
    ]
    drawn = "".join(
        f'<svg x="{x}" width="{width}" height="{pictures.HEAT_HEIGHT}">{drawing}</svg>'
        f'<text x="{x}" y="{HEIGHT - 4}">{caption}</text>'
        for x, width, drawing, caption in parts
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">\n'
        f"<style>{_colours()}{RULES}</style>\n"
        f'<rect class="paper" width="100%" height="100%"/>'
        f'<rect class="blank" width="{MAP_WIDTH}" height="{pictures.HEAT_HEIGHT}"/>{drawn}</svg>\n'
    )


def _colours() -> str:
    """The tokens of the pages, for a picture that has no stylesheet beside it."""
    tokens = (ROOT / "webapp/ui/static/moescope/tokens.css").read_text()
    used = r"paper|sunken|muted|line-strong|stage-experts|heat-\d"
    found = re.findall(rf"--({used}): light-dark\((#\w+), (#\w+)\);", tokens)
    light, dark = (" ".join(f"--{name}: {pair[theme]};" for name, *pair in found) for theme in (0, 1))
    levels = [name for name, *_ in found if name.startswith("heat-")]
    return f"\n:root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n" + " ".join(
        f".{level} {{ stroke: var(--{level}); }}" for level in levels
    )


def _read(run: Run) -> dict[str, object]:
    return run.model_dump(mode="json", include=set(routing.READ))


def _print_steps(runs: dict[tuple[str, str], Run], section: routing.Section, corners: list[str]) -> None:
    """Median steps of the whole model at every corner, and what routing came to at the drawn one."""
    heads = ["strategy", *corners, "active experts", "experts max ÷ mean", "as the model's own"]
    print(f"| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")
    for row in section.rows:
        steps = [f"{_summary(runs[row.name, corner]).step_us.p50 / 1000:.0f} ms" for corner in corners]
        overlap = row.outcome.expert_overlap
        cells = [
            f"{row.active_experts:.1f}",
            f"{row.summary.expert_imbalance:.2f}",
            "–" if overlap is None else f"{overlap:.0%}",
        ]
        print(f"| {' | '.join([row.name, *steps, *cells])} |")
    print()


def _print_full_batches(runs: dict[tuple[str, str], Run]) -> None:
    """Medians of one layer over the steps that are full of prompt tokens."""
    stages = ("route.select", "permute", "experts", "combine")
    print(f"| strategy | {' | '.join(stages)} | layer |\n| --- |{' ---: |' * (len(stages) + 1)}")
    for name in STRATEGIES:
        steps = runs[name, FULL].steps
        assert steps is not None
        fullest = max(steps.prefill_tokens)
        full = [step for step, tokens in enumerate(steps.prefill_tokens) if tokens > 0.9 * fullest]
        columns = [*(steps.ranks[0].stages_us[stage] for stage in stages), steps.layer_us]
        medians = [f"{statistics.median(column[step] for step in full) / 1000:.1f} ms" for column in columns]
        print(f"| {' | '.join([name, *medians])} |")


def _summary(run: Run) -> routing.Summary:
    assert run.summary is not None, f"{run.variant} at {run.condition} has no times: {run.status}"
    return run.summary


if __name__ == "__main__":
    sys.exit(main())
