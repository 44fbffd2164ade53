"""Every kind of harm, once, to one running product: what was asked for ends, once, and nothing is left.

`make faults` does the same ten times and prints a table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cases import FAULTS
from tests.faults.product import ROOT, own_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a killed parent's children are not told")


@pytest.fixture(scope="module")
def trial(kept_ceilings: Path) -> Iterator[subprocess.Popen[str]]:
    """A product, and the program that harms it: a fault's name a line in, its tally a line out."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.faults", "--serve", "--rounds=1"],
            cwd=ROOT, env=own_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as process,
    ):  # fmt: skip
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(120)


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_stuck_doubled_or_left_after(name: str, trial: subprocess.Popen[str]) -> None:
    assert trial.stdin is not None
    assert trial.stdout is not None
    trial.stdin.write(f"{name}\n")
    trial.stdin.flush()
    tally: dict[str, Any] = json.loads(trial.stdout.readline())
    assert not tally["wrong"], "\n".join(tally["wrong"])
    assert tally["counts"]["done"] + tally["counts"]["failed"] > 0
