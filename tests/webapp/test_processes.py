import os
import signal
import subprocess
import sys

import psutil
import pytest

from webapp import processes
from webapp.processes import Part, StartError


def part(tmp_path, code, **kwargs):
    return Part(name="Thing", command=[sys.executable, "-c", code], log=tmp_path / "log" / "thing.log", **kwargs)


def test_a_part_that_ends_while_starting_is_reported_with_the_end_of_its_log(tmp_path):
    thing = part(tmp_path, "print('no such table'); raise SystemExit(3)", is_ready=lambda: False)
    with pytest.raises(StartError, match=r"Thing ended as it started \(exit code 3\).*\nno such table"):
        processes.wait_until_ready(thing, processes.start(thing))


def test_a_part_that_is_never_ready_is_reported(tmp_path):
    thing = part(tmp_path, "input()", is_ready=lambda: False)
    process = processes.start(thing)
    process.wait()
    with pytest.raises(StartError, match="Thing ended"):
        processes.wait_until_ready(thing, process)
    thing = part(tmp_path, "import signal; signal.pause()", is_ready=lambda: False)
    process = processes.start(thing)
    with pytest.raises(StartError, match=r"Thing was not ready within 0\.1 s"):
        processes.wait_until_ready(thing, process, within_s=0.1)
    processes.stop({process: signal.SIGKILL}, within_s=2)


def test_a_part_leads_a_process_group_of_its_own(tmp_path):
    process = processes.start(part(tmp_path, "import signal; signal.pause()"))
    assert os.getpgid(process.pid) == process.pid
    processes.stop({process: signal.SIGTERM}, within_s=2)
    assert process.returncode == -signal.SIGTERM


def test_stopping_kills_a_deaf_part_and_what_it_started(tmp_path):
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True);"
        f"pathlib.Path({str(ready)!r}).write_text(str(child.pid)); signal.pause()"
    )
    thing = part(tmp_path, code, is_ready=lambda: ready.exists() and ready.read_text() != "")
    process = processes.start(thing)
    processes.wait_until_ready(thing, process)
    grandchild = psutil.Process(int(ready.read_text()))

    processes.stop({process: signal.SIGTERM}, within_s=0.2)

    assert process.returncode == -signal.SIGKILL
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the children of a killed parent")
def test_a_part_ends_when_its_parent_is_killed(tmp_path):
    parent_code = (
        "import pathlib, signal, sys; from webapp import processes;"
        "part = processes.Part('Thing', [sys.executable, '-c', 'import signal; signal.pause()'], "
        f"pathlib.Path({str(tmp_path / 'thing.log')!r}));"
        "print(processes.start(part).pid, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    child.wait(timeout=5)  # raises where it lives on


def test_a_long_log_is_put_aside_before_the_next_start(tmp_path):
    log = tmp_path / "log" / "thing.log"
    log.parent.mkdir()
    log.write_bytes(b"x" * (processes.MAX_LOG_BYTES + 1))
    processes.start(part(tmp_path, "print('fresh')")).wait()
    assert log.read_text() == "fresh\n"
    assert log.with_suffix(".log.1").stat().st_size > processes.MAX_LOG_BYTES


def test_processes_are_found_by_what_their_environment_carries(tmp_path):
    marked = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=os.environ | {"MARK": str(tmp_path)}
    )
    assert [process.pid for process in processes.carrying("MARK", str(tmp_path))] == [marked.pid]
    assert processes.carrying("MARK", f"{tmp_path}x") == []
    marked.kill()
    marked.communicate()


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL"), (-64, "SIGRTMAX")]
)
def test_how_a_process_ended_reads_as_words(code, words):
    assert processes.how_it_ended(code) == words


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
def test_adopted_orphans_leave_the_process_table_and_own_children_do_not():
    code = (
        "import os, subprocess, sys, psutil; from webapp import processes; processes.adopt_orphans()\n"
        "own = subprocess.Popen([sys.executable, '-c', 'raise SystemExit(3)'])\n"
        "leaves = 'import os; print(os.fork() or os._exit(0))'\n"
        "orphan = int(subprocess.check_output([sys.executable, '-c', leaves]).split()[0])\n"
        "zombies = lambda: {c.pid for c in psutil.Process().children() if c.status() == psutil.STATUS_ZOMBIE}\n"
        "while zombies() != {own.pid, orphan}: pass\n"
        "processes.reap_orphans([own.pid])\n"
        "sys.exit(0 if zombies() == {own.pid} and own.wait() == 3 else 1)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
