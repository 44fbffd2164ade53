"""The directory of an attempt: held by a process, and found when that is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from webapp.experiments import attempts
from webapp.experiments.queue import Fence

#: Begins an attempt in a process of its own, and says so.
BEGINS = """
import sys, django
django.setup()
from django.conf import settings
from pathlib import Path
settings.MOESCOPE_DATA = Path(sys.argv[1])
from webapp.experiments import attempts
from webapp.experiments.queue import Fence
with attempts.begun(Fence(7, 2)) as directory:
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def data(settings: Any, tmp_path: Path) -> Path:
    settings.MOESCOPE_DATA = tmp_path
    return tmp_path


def test_it_is_there_while_the_attempt_lasts() -> None:
    with attempts.begun(Fence(7, 2)) as directory:
        assert directory.name == "7-2"
        assert attempts.directories() == [directory]
        assert attempts.fence_of(directory) == Fence(7, 2)
    assert attempts.directories() == []


def test_an_attempt_that_ends_with_an_error_leaves_it_behind() -> None:
    def fails() -> None:
        with attempts.begun(Fence(7, 2)) as directory:
            (directory / "file").touch()
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    [directory] = attempts.directories()
    with attempts.left_behind(directory) as nobody_holds_it:
        assert nobody_holds_it
        assert (directory / "file").exists()
    assert not directory.exists()


def test_what_is_held_is_left_alone() -> None:
    with attempts.begun(Fence(7, 2)) as directory:
        with attempts.left_behind(directory) as nobody_holds_it:
            assert not nobody_holds_it
        assert directory.exists()


def test_what_is_gone_by_now_is_no_error(data: Path) -> None:
    with attempts.left_behind(data / "attempts" / "1-1") as nobody_holds_it:
        assert not nobody_holds_it


def test_what_could_not_be_taken_up_stays(data: Path) -> None:
    directory = attempts.home() / "7-2"
    directory.mkdir()
    with pytest.raises(LookupError), attempts.left_behind(directory):
        raise LookupError
    assert directory.exists()


def test_a_directory_of_an_earlier_database_is_emptied() -> None:
    (attempts.home() / "7-2").mkdir()
    (attempts.home() / "7-2" / attempts.RESULT).touch()
    with attempts.begun(Fence(7, 2)) as directory:
        assert list(directory.iterdir()) == []


def test_a_worker_without_a_place_to_write_refuses_to_start(data: Path, settings: Any) -> None:
    attempts.refuse_without_a_place()
    (data / "file").touch()
    settings.MOESCOPE_DATA = data / "file"
    with pytest.raises(SystemExit) as refused:
        attempts.refuse_without_a_place()
    assert refused.value.code == (
        f"A worker can't write into {data}/file/attempts (Not a directory): name another place with MOESCOPE_DATA."
    )


def test_a_killed_process_holds_nothing(data: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", BEGINS, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    directory = Path(other.stdout.readline().strip())
    with attempts.left_behind(directory) as nobody_holds_it:
        assert not nobody_holds_it
    other.kill()
    other.communicate()
    with attempts.left_behind(directory) as nobody_holds_it:
        assert nobody_holds_it
