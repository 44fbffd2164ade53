import os
import stat

import psutil
import pytest

from webapp import state
from webapp.state import ProcessId, State


def running(**changes):
    known = {"supervisor": ProcessId.of(os.getpid()), "database_url": "postgresql://x", "broker_url": "redis://y"}
    return State(**known | changes)


def test_what_is_written_is_read_back(tmp_path):
    written = running(sockets="/tmp/s", parts={"Web": ProcessId.of(os.getppid())})
    written.write(tmp_path)
    assert state.read(tmp_path) == written


def test_nothing_runs_where_nothing_was_written(tmp_path):
    assert state.read(tmp_path) is None


def test_the_state_of_a_product_that_is_gone_counts_as_none(tmp_path):
    us = psutil.Process()
    left = running(supervisor=ProcessId(us.pid, us.create_time() - 100))  # the id belongs to another process now
    left.write(tmp_path)
    assert state.read(tmp_path) is None
    assert state.read_any(tmp_path) == left


def test_removing_a_state_twice_is_fine(tmp_path):
    running().write(tmp_path)
    state.remove(tmp_path)
    state.remove(tmp_path)
    assert state.read_any(tmp_path) is None


def test_the_secret_key_is_made_once_and_only_its_owner_reads_it(tmp_path):
    assert state.secret_key(tmp_path) is None
    state.make_secret_key(tmp_path)
    key = state.secret_key(tmp_path)
    state.make_secret_key(tmp_path)
    assert state.secret_key(tmp_path) == key
    assert len(key) >= 50
    assert stat.S_IMODE((tmp_path / "secret-key").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["state.json", "secret-key"])
def test_files_with_secrets_are_closed_to_others(tmp_path, name):
    running().write(tmp_path)
    state.make_secret_key(tmp_path)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
