"""The signs of life of a rank: what its launcher reads of them."""

import threading
import time

from bench_worker.parallel import trail
from bench_worker.parallel.trail import Pace


def test_a_trail_holds_the_last_sign_and_the_error(tmp_path):
    file = tmp_path / "0"
    assert trail.read(file) is None
    written = trail.Trail(file, pid=7)
    written.phase("step 3")
    written.sign("permute.pack")
    assert trail.read(file)[:2] == (7, 3)
    assert trail.read(file).last == "permute.pack of step 3"
    written.sign("x" * 500)
    assert len(trail.read(file).last) <= 200
    written.fail("base.layers: 9 is too many")
    assert trail.read(file).error == "base.layers: 9 is too many"
    written.phase("what is planned", Pace.SILENCE)
    assert (trail.read(file).last, trail.read(file).pace) == ("what is planned", Pace.SILENCE)
    written.phase("step 4")
    assert trail.read(file).pace == Pace.STEPS
    written.end()
    assert trail.read(file).pace == Pace.ENDED


def test_whoever_reads_the_first_sign_reads_that_the_process_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)  # not yet: another process reads first
    began = time.monotonic()
    trail.Trail(tmp_path / "0", pid=7)
    sign = trail.read(tmp_path / "0")
    assert (sign.signs, sign.last) == (1, "its start")
    assert began <= sign.alive_s <= time.monotonic()
