"""Speaks the measuring program's protocol and measures nothing. The experiment's title says how it behaves."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from bench_worker.spec import Library, parse_experiment
from tests.webapp.experiments import make


def say(**event: object) -> None:
    print(json.dumps(event), file=sys.stderr, flush=True)


def wait_for(file: Path) -> None:
    """Measure until the file exists; in ten minutes nobody wants it any more."""
    for _ in range(30_000):
        if file.exists():
            return
        time.sleep(0.02)
    sys.exit("nobody said that it may end")


def leave_ranks() -> None:
    """Two processes that nobody waits for and that no polite signal ends; one has a session of its own."""
    for is_daemon in (False, True):
        if os.fork() == 0:
            if is_daemon:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                signal.pause()


def kernels(given: dict[str, str]) -> int:
    """The table; at 7 tokens it hangs, at 13 it is refused."""
    tokens = [int(count) for count in given["--tokens"].split(",")]
    say(event="progress", phase="sizes", done=1, total=4)
    if 7 in tokens:
        sys.stdin.buffer.read()
    if 13 in tokens:
        say(event="error", message="needs 61.1 GB")
        return 3
    Path(given["--out"]).write_text(make.table(given["--model"], tokens, given["--dtype"]).model_dump_json())
    return 0


def main() -> int:
    if sys.argv[1] == "machine":
        print(json.dumps(make.MACHINE))
        return 0
    if sys.argv[1] == "kernels":
        return kernels(dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True)))
    _, _, file, _, out, _, traces, _, recordings, _ = sys.argv
    data = Path(file).read_bytes()
    known = [frozenset(path.stem for path in Path(folder).iterdir()) for folder in (traces, recordings)]
    asked = parse_experiment(data, Library(*known))
    if asked.title == "real":
        os.execv(sys.executable, [sys.executable, "-m", "bench_worker", *sys.argv[1:]])
    measured = make.result(asked)
    say(event="progress", phase="measure", done=1, total=4, variant="gate_up", condition="1×16")
    first = measured.runs[0].model_dump(mode="json", include={"variant", "condition", "status", "summary"})
    say(event="run", run=first)
    match asked.title.split():
        case ["exit", code, *words]:
            say(event="error", message=" ".join(words))
            return int(code)
        case ["hang", *_]:
            print("hanging", flush=True)
            sys.stdin.buffer.read()  # until whoever started it is gone, or a signal comes
            return 130
        case ["wait", file]:
            wait_for(Path(file))
        case ["leave", "ranks", "and", "wait", file]:
            leave_ranks()
            wait_for(Path(file))
        case ["eat"]:
            print("hungry", flush=True)
            held = []
            while True:
                held.append(os.urandom(1 << 22))
        case ["killed"]:
            print("about to go", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case ["no", "result"]:
            return 0
        case ["half", "a", "result"]:
            Path(out).write_text('{"schema": 1')
            return 0
        case ["show", "recordings"]:
            print(*sorted(path.name for path in Path(recordings).iterdir()), flush=True)
            return 1
        case ["show", "trace"]:
            print((Path(traces) / f"{asked.base.workload.trace}.csv").read_text(), flush=True)
            return 1
    Path(out).write_text(measured.model_dump_json(by_alias=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
