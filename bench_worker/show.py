"""A result file as text: an overview of its runs, or any one part of it. Pure; torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from bench_worker.errors import SpecError, shown
from bench_worker.findings import RunComparison, Verdict
from bench_worker.result import Result, Run, Summary

__all__ = ["overview", "part", "read_result"]


def read_result(data: bytes, name: str) -> Result:
    """The result in the bytes of a file called ``name``. Raises `SpecError` where it holds none of schema 1."""
    try:
        return Result.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the document"
        message = f"{name} is not a result file of schema 1 ({where}: {problem['msg']})"
        raise SpecError("result", name, message) from None


def overview(result: Result) -> str:
    """Title, machine and, for each run, its check, its median step, its stages and what users feel."""
    title = result.experiment.get("title", "Untitled experiment")
    machine = result.environment.get("name", "a machine without a name")
    verdicts = result.verdict.runs if result.verdict else {}
    runs = (line for run in result.runs for line in _run(run, verdicts.get(f"{run.variant} at {run.condition}")))
    return "\n".join([f"{title} on {machine}", *runs, *_compared(result.comparisons), *_verdict(result.verdict)])


def _run(run: Run, verdict: Verdict | None) -> Iterator[str]:
    error = "not a number" if run.check.rel_error is None else f"{run.check.rel_error:.1e}"
    yield ""
    yield f"{run.variant} at {run.condition}: {run.status}, error {error} (at most {run.check.tolerance:.0e})"
    if run.check.quantization_error is not None:
        yield f"  rounding the weights changes outputs by {run.check.quantization_error:.1%} (random weights)"
    if run.summary is not None:
        step = run.summary.step_us
        origin = run.origins.get("step_us", "origin unknown")
        yield f"  step {step.p50 / 1e3:.2f} ms ({origin}, median of {step.samples:,})"
        for stage, time_us in run.summary.stage_us.items():
            share = run.summary.stage_share.get(stage)
            yield f"  {stage:18} {time_us / 1e3:10.3f} ms{'' if share is None else f'   {share:5.1%} of the step'}"
        yield from _felt(run.summary)
    if verdict is not None:
        yield f"  {verdict.sentence}"
    yield from (f"  {note}" for note in run.notes)


def _compared(comparisons: Sequence[RunComparison]) -> Iterator[str]:
    """Each variant's step against the first variant's, and the stage that its change lies in."""
    if comparisons:
        yield ""
    for one in comparisons:
        step = one.quantities.get("step_us")
        if step is None:
            continue
        where = "over all conditions" if one.condition is None else f"at {one.condition}"
        sure = "" if step.ci95 is None else f" ({step.ci95[0]:.3f} to {step.ci95[1]:.3f}, p {step.p_value:.2g})"
        cause = "" if one.cause is None else f", in {one.cause}"
        yield (
            f"{one.contender} against {one.base} {where}: step × {step.ratio:.3f}{sure}, {step.samples:,} steps, "
            f"{step.verdict}{cause}"
        )


def _verdict(verdict: Verdict | None) -> Iterator[str]:
    if verdict is None:
        return
    shares = ", ".join(f"{cost} {share:.0%}" for cost, share in verdict.shares.items())
    memory = f"{verdict.memory_bytes / 1e9:,.1f} GB"
    if verdict.device_bytes is not None:
        memory += f" of the {verdict.device_bytes / 1e9:,.1f} GB that were free here"
    yield ""
    yield f"Verdict: {verdict.dominant}. {verdict.sentence}"
    yield f"  {shares}; the deployment takes {memory}"
    yield from (f"  Try next: {advice.sentence}" for advice in verdict.advice)


def _felt(summary: Summary) -> Iterator[str]:
    """What users feel: each latency with the steps behind its p95, and the throughput."""
    for metric, tail in summary.tails.items():
        latency = getattr(summary, metric)
        steps = "1 step" if len(tail.steps) == 1 else f"{len(tail.steps):,} steps"
        yield (
            f"  {metric.removesuffix('_ms').upper():4} p50 {latency.p50:,.1f} ms, p95 {latency.p95:,.1f} ms "
            f"({steps}: {tail.reason})"
        )
    if summary.requests_per_s is not None:
        goodput = "" if summary.goodput_per_s is None else f", {summary.goodput_per_s:,.2f} within the limits"
        yield f"  {summary.requests_per_s:,.2f} requests a second{goodput}"


def part(document: Any, path: str) -> Any:
    """The value at the dotted ``path`` of a decoded ``document``: ``runs.0.steps.step_us``. The names of stages hold
    dots themselves (``route.gate``) and are found all the same. Raises `SpecError` for a path that leads nowhere."""
    found, rest, walked = document, path, ""
    while rest:
        name = _first_name(found, rest)
        if name is None:
            raise SpecError(path, rest, f"there is no such part; {walked or 'a result'} {_parts(found)}")
        found = found[int(name)] if isinstance(found, list) else found[name]
        rest = rest[len(name) + 1 :]
        walked = f"{walked}.{name}" if walked else name
    return found


def _first_name(value: Any, path: str) -> str | None:
    """The name, or the number as text, that leads from ``value`` towards ``path``; the longest where several do."""
    if isinstance(value, list):
        number = path.partition(".")[0]
        return number if number.isascii() and number.isdecimal() and int(number) < len(value) else None
    if isinstance(value, dict):
        names = [name for name in value if f"{path}.".startswith(f"{name}.")]
        return max(names, key=len, default=None)
    return None


def _parts(value: Any) -> str:
    if isinstance(value, dict):
        return f"has {', '.join(value)}" if value else "is empty"
    if isinstance(value, list):
        return f"is a list of {len(value):,}, counted from 0"
    return f"is {shown(value)}"
