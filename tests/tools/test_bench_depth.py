"""The benchmark that holds a whole model against one that is scaled, without measuring."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench_worker.result import Result
from bench_worker.spec import Experiment
from tests.bench_worker.conftest import TINY
from tests.webapp.experiments import make
from tools.bench import apart, depth

WORKLOAD = {"requests": 4, "concurrency": 2, "prompt_tokens": 8, "output_tokens": 4}


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A model of four layers."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def measured(mean_ms: Callable[[int], float], calls: list[int], **changes: Any) -> Callable[[Experiment], Any]:
    """In the place of `apart.measure`: a run whose mean TPOT is ``mean_ms`` of the number of the call."""

    def measure(experiment: Experiment) -> apart.Measured:
        calls.append(experiment.base.layers)
        (run, *_) = make.result(make.experiment()).runs
        assert run.summary
        tpot = make.distribution([mean_ms(len(calls))])
        run.summary = run.summary.model_copy(update={"tpot_ms": tpot} | changes)
        result = Result(schema=1, experiment={}, environment={}, runs=[run])
        return apart.Measured(result, peak_bytes=3_000_000_000, seconds=12.4)

    return measure


def test_the_whole_model_is_measured_between_two_scaled_runs(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(apart, "measure", measured({1: 100.0, 2: 104.0, 3: 108.0}.__getitem__, calls))
    depth.compare(tiny, 2, WORKLOAD)
    assert calls == [2, 4, 2]
    head, _, *table, last = capsys.readouterr().out.splitlines()
    assert head == "tiny, bfloat16, 4 requests of conversation, 2 at once; whole-model times"
    assert [row.split() for row in table] == [
        ["2", "100.0", "100.0", "100.0", "1", "3.00", "12"],
        ["4", "104.0", "104.0", "104.0", "1", "3.00", "12"],
        ["2", "108.0", "108.0", "108.0", "1", "3.00", "12"],
    ]
    assert last == "all 4 layers / scaled from 2: 1.000 (TPOT, mean); the second scaled run / the first: 1.080"


def test_it_says_when_they_are_too_far_apart_and_what_was_cut(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(apart, "measure", measured({1: 100.0, 2: 111.0, 3: 100.0}.__getitem__, [], truncated=True))
    depth.compare(tiny, 2, WORKLOAD)
    out = capsys.readouterr().out
    assert "1.110 (TPOT, mean) ! not within 10%;" in out
    assert out.count("  truncated\n") == 3


def test_a_machine_that_is_too_small_measures_nothing(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(apart, "predicted_bytes", lambda experiment: 10**15)
    depth.compare(tiny, 2, WORKLOAD)
    assert "all 4 layers need 1000000.0 GB and " in capsys.readouterr().out


def test_a_measurement_that_fails_ends_it_in_its_own_words(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(experiment: Experiment) -> apart.Measured:
        raise apart.Failed("out of memory")

    monkeypatch.setattr(apart, "measure", fails)
    depth.compare(tiny, 2, WORKLOAD)
    assert capsys.readouterr().out.splitlines()[-1] == "       2  out of memory"
    monkeypatch.setattr(apart, "measure", measured(lambda call: 1.0, [], tpot_ms=None))
    depth.compare(tiny, 2, WORKLOAD)
    assert "no request has a TPOT: ok" in capsys.readouterr().out
