"""The command that starts real ranks: what it writes, and what it says when one of them dies, hangs or is refused."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench_worker.errors import SpecError, Unavailable
from bench_worker.parallel import launch, trail
from bench_worker.parallel.trail import Pace
from bench_worker.parallel.world import SIGNS, Place, place_of_this_process, refuse_more_ranks_than_devices
from bench_worker.result import Result
from tests.webapp.experiments.waiting import is_gone, wait_until

ROOT = Path(__file__).resolve().parents[3]
#: As the command line, with less patience for a rank that hangs.
IMPATIENT = """
import sys
from bench_worker.parallel import launch
launch.HANGS_AFTER_S = 12.0
from bench_worker.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def experiment_file(tiny_config, tmp_path):
    def write(requests=4, concurrency=2, **parallel):
        several = {"mode": "distributed", "layout": {"tp": 1, "dp": 2, "nodes": 1}} | parallel
        path = tmp_path / "experiment.json"
        path.write_text(json.dumps({
            "base": {
                "model": str(tiny_config), "layers": 2, "parallel": several,
                "kernels": {"dtype": "float32"},
                "workload": {"requests": requests, "prompt_tokens": 5, "output_tokens": 4, "concurrency": concurrency},
            },
            "measure": {"warmup_steps": 1},
        }))  # fmt: skip
        return path

    return write


def ended(program, *arguments, **kwargs):
    return subprocess.run(
        [*program, "run", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=200, **kwargs
    )


def errors(stderr):
    events = [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]
    return [event["message"] for event in events if event["event"] == "error"]


PROGRAM = (sys.executable, "-m", "bench_worker")


def test_a_file_with_real_ranks_starts_them_and_the_first_writes_the_result(experiment_file, tmp_path):
    out = tmp_path / "result.json"
    done = ended(PROGRAM, experiment_file(), "--out", out)
    assert (done.returncode, done.stdout, errors(done.stderr)) == (0, "", [])
    (run,) = Result.model_validate_json(out.read_bytes()).runs
    assert run.status == "ok"
    assert [rank.rank for rank in run.steps.ranks] == [0, 1]
    assert run.exchange.network == run.origins["dispatch"] == "measured"
    assert run.exchange.clock_offsets_us == []  # one kernel gives both the time
    assert run.clock.sampled_steps > 0
    assert len(run.requests.ttft_ms) == 4


def ranks_of(program):
    """The processes of its ranks that live, by rank."""
    found = {}
    for child in psutil.Process(program.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended in between
            if (rank := child.environ().get("RANK")) is not None:
                found[int(rank)] = child
    return found


@pytest.fixture
def measuring(experiment_file):
    """A run of two ranks in the midst of its steps; the pids of its ranks."""
    program = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "run", str(experiment_file(requests=10_000))],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said = []
    for line in program.stderr:
        said.append(line)
        if sum('"measure"' in one for one in said) == 2:  # a step lies behind both: one can't end without the other
            break
    else:
        raise AssertionError("".join(said))
    ranks = {rank: process.pid for rank, process in ranks_of(program).items()}
    assert set(ranks) == {0, 1}
    yield program, ranks
    program.kill()
    for pid in ranks.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    program.wait()


def rest_of(program):
    """What it says until its end, and that none of its ranks is left then."""
    began = time.monotonic()
    _, said = program.communicate(timeout=60)
    assert time.monotonic() - began < 30
    return errors(said)


def gone(ranks, within_s=0):
    return all(is_gone(pid, within_s) for pid in ranks.values())


@pytest.mark.parametrize(
    ("hit", "how"), [(signal.SIGKILL, "was killed (SIGKILL)"), (signal.SIGSTOP, "hangs")], ids=["dies", "hangs"]
)
def test_a_rank_that_dies_or_hangs_ends_the_run_with_its_name_and_last_stage(measuring, hit, how):
    program, ranks = measuring
    os.kill(ranks[1], hit)
    (message,) = rest_of(program)
    assert message.startswith(f"Rank 1 {how}: its last sign was ")
    assert " step " in message  # "permute.pack of step 3", or "step 4" at its very beginning
    assert program.returncode == 1
    assert gone(ranks)


def test_a_stop_reaches_every_rank(measuring):
    program, ranks = measuring
    program.send_signal(signal.SIGTERM)
    assert "canceled" in rest_of(program)
    assert program.returncode == 130
    assert gone(ranks)


def test_ranks_end_with_a_launcher_that_was_killed(measuring):
    program, ranks = measuring
    program.kill()
    assert gone(ranks, within_s=20)


def test_another_number_of_ranks_than_the_layout_has_is_refused(experiment_file):
    place = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    done = ended(PROGRAM, experiment_file(), env=os.environ | place)
    assert done.returncode == 2
    assert errors(done.stderr) == ["base.parallel.layout: 2 ranks are asked for, and 3 were started"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nnodes", "2"], "--rdzv: is missing; several hosts meet at a HOST:PORT of the first of them"),
        (["--nnodes", "2", "--rdzv", "somewhere"],
         "--rdzv: 'somewhere' is not HOST:PORT, with a port from 1 to 65535"),
        (["--nnodes", "2", "--node-rank", "2", "--rdzv", "a:1"],
         "--node-rank: 2 is not one of the 2 hosts, which are counted from 0"),
        (["--nnodes", "3", "--rdzv", "localhost:1"], "--nnodes: 3 hosts do not divide the 2 ranks (tp · dp)"),
    ],
)  # fmt: skip
def test_hosts_that_make_no_sense_are_refused(experiment_file, arguments, sentence):
    done = ended(PROGRAM, experiment_file(), *arguments)
    assert (done.returncode, errors(done.stderr)) == (2, [sentence])


def test_several_hosts_are_refused_without_real_ranks(experiment_file):
    done = ended(PROGRAM, experiment_file(mode="virtual"), "--nnodes", "2", "--rdzv", "localhost:1")
    assert errors(done.stderr) == ["--nnodes: 2 hosts need parallel.mode distributed"]


def test_a_host_that_nobody_answers_at_is_named(experiment_file, monkeypatch):
    impatient = IMPATIENT.replace("HANGS_AFTER_S = 12.0", "RENDEZVOUS_S = 2.0")
    arguments = ["--nnodes", "2", "--node-rank", "1", "--rdzv", "127.0.0.1:9"]
    done = ended((sys.executable, "-c", impatient), experiment_file(), *arguments)
    assert done.returncode == 2
    (message,) = errors(done.stderr)
    assert message.startswith("--rdzv: the 2 hosts did not come together at 127.0.0.1:9 within 2 s")


def test_more_ranks_than_gpus_are_refused():
    refuse_more_ranks_than_devices(ranks=2, devices=2)
    with pytest.raises(Unavailable, match="8 ranks on this host need as many GPUs, and it has 2"):
        refuse_more_ranks_than_devices(ranks=8, devices=2)


@pytest.fixture
def at_its_end(experiment_file):
    """A run whose rank 0 writes a result that nobody reads yet, and has given no sign for longer than a rank in its
    steps may be silent; with the pid of that rank."""
    program = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "run", str(experiment_file(requests=2000, concurrency=500))],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in program.stderr:
        if '"write"' in line:
            break
    else:
        raise AssertionError("it never wrote")
    rank = ranks_of(program)[0]
    signs = Path(rank.environ()[SIGNS]) / "0"
    assert wait_until(lambda: time.monotonic() - trail.read(signs).at_s > 12 + 3 * launch.LOOK_S, within_s=60)
    yield program, rank.pid
    if program.poll() is None:
        program.kill()
    program.communicate()


def test_a_long_end_of_the_first_rank_is_no_hang(at_its_end):
    program, _ = at_its_end
    document, said = program.communicate(timeout=60)
    assert (program.returncode, errors(said)) == (0, [])
    assert len(document) > 2**17  # more than a pipe holds: it did wait for its reader
    assert Result.model_validate_json(document).runs[0].status == "ok"


def test_a_rank_that_is_stopped_at_its_end_is_still_found(at_its_end):
    program, pid = at_its_end
    os.kill(pid, signal.SIGSTOP)
    (message,) = rest_of(program)
    assert message.startswith("Rank 0 hangs: its last sign was ")
    assert " and its process has not run for " in message
    assert program.returncode == 1
    assert not psutil.pid_exists(pid)


def sign(count=9, at_s=0.0, alive_s=100.0, pace=Pace.STEPS):
    return trail.Sign(1, count, at_s, alive_s, "experts of step 3", "", pace)


@pytest.mark.parametrize(
    ("signs", "now_s", "words"),
    [
        ({0: sign(at_s=90), 1: sign(at_s=85)}, 101, ""),
        ({0: sign(at_s=80), 1: sign(8, at_s=79)}, 101,
         "Rank 1 hangs: its last sign was experts of step 3, and no rank has come further for 21 s"),
        # what is done in silence takes as long as it takes, and the others wait for it
        ({0: sign(at_s=20, pace=Pace.SILENCE), 1: sign(at_s=50)}, 101, ""),
        ({0: sign(at_s=20, pace=Pace.SILENCE), 1: sign(at_s=20, alive_s=21, pace=Pace.ENDED)}, 101, ""),
        ({0: sign(at_s=20, alive_s=21, pace=Pace.ENDED), 1: sign(at_s=20, alive_s=21, pace=Pace.ENDED)}, 101, ""),
        # a stopped process is found in silence, too, and beside others that run
        ({0: sign(at_s=99), 1: sign(at_s=20, alive_s=80.5, pace=Pace.SILENCE)}, 101,
         "Rank 1 hangs: its last sign was experts of step 3, and its process has not run for 20 s"),
        # ranks that have ended are not to blame
        ({0: sign(at_s=80), 1: sign(3, at_s=20, alive_s=21, pace=Pace.ENDED)}, 101,
         "Rank 0 hangs: its last sign was experts of step 3, and no rank has come further for 21 s"),
        # libraries take long to load
        ({0: sign(1, at_s=1), 1: sign(1, at_s=1)}, 101, ""),
        ({0: sign(1, at_s=1)}, 101, ""),
        ({0: sign(1, at_s=1, alive_s=124)}, 125,
         "Rank 1 hangs: it gave no sign, and no rank has come further for 124 s"),
    ],
    ids=["signs", "silent", "in silence", "its end", "ended", "stopped", "others ended", "start", "absent", "never"],
)  # fmt: skip
def test_a_hang_is_told_from_work_in_silence(signs, now_s, words):
    assert launch.hang([0, 1], signs, began_s=0.0, now_s=now_s, hangs_after_s=20.0) == words


def test_the_rank_that_others_wait_for_is_the_one_behind():
    assert launch.behind([0, 1, 2], {0: sign(9), 1: sign(7), 2: sign(9)}, now_s=101) == 1
    assert launch.behind([0, 1], {0: sign(9), 1: sign(9, alive_s=80)}, now_s=101) == 1  # its process was stopped
    assert launch.behind([4, 5], {4: sign(9)}, now_s=101) == 5  # never heard of


@pytest.mark.parametrize("text", ["host", "host:", ":5", "host:0", "host:65536", "host:x"])
def test_an_address_needs_a_host_and_a_port(text):
    with pytest.raises(SpecError, match="is not HOST:PORT"):
        launch.parse_address(text)
    assert launch.parse_address("host:5") == ("host", 5)


def test_a_place_is_what_the_launcher_tells(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert place_of_this_process() is None
    for name, value in {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    for size in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):  # torchrun's name, and DeepSpeed's
        monkeypatch.setenv(size, "2")
        assert place_of_this_process() == Place(rank=3, size=4, local_rank=1, local_size=2)
        monkeypatch.delenv(size)
    assert place_of_this_process().local_size == 4
