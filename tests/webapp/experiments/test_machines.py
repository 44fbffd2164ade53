"""Which computers measure, and what fits on them."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bench_worker.errors import DoesNotFit, SpecError
from tests.webapp.experiments import make
from webapp.experiments import launch, machines, memory, queue
from webapp.experiments.models import Experiment, Machine
from webapp.traces.store import import_trace

pytestmark = pytest.mark.django_db
FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


def details(fingerprint: str = "a", memory_bytes: int = 24_000_000_000, **more: Any) -> dict[str, Any]:
    return {"name": "a machine", "fingerprint": fingerprint, "memory_bytes": memory_bytes, "gpus": []} | more


def test_a_worker_registers_what_the_measuring_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PROGRAM", FAKE)
    machine = machines.look_at_this("default")
    assert machine is not None
    assert (machine.name, machine.fingerprint, machine.details["cores"]) == ("test bench", "abc123", 2)
    assert machines.of_this_worker("default") == machine
    assert machines.of_this_worker("gpu") is None


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "print('no json')", "print('{}')", "import os; os.abort()"])
def test_a_program_that_can_not_say_registers_nothing(
    code: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launch, "PROGRAM", (sys.executable, "-c", code))
    assert machines.look_at_this("default") is None
    assert "This machine is not registered" in caplog.text
    assert not Machine.objects.exists()


def test_the_same_fingerprint_is_the_same_machine_seen_again() -> None:
    first = machines.register_this(details(), "default")
    again = machines.register_this(details(name="renamed"), "default")
    assert (again.pk, again.name, again.first_seen) == (first.pk, "renamed", first.first_seen)
    assert again.last_seen > first.last_seen


def test_a_result_leaves_what_is_known_of_the_backends() -> None:
    backends = {"zentorch": {"none": "it is away"}}
    machines.register_this(details(backends=backends), "default")
    again = machines.register_this(details(cores=2), "default")
    assert (again.details["backends"], again.details["cores"]) == (backends, 2)


def test_new_versions_are_a_new_state_of_the_same_computer() -> None:
    machines.register_this(details("old"), "default")
    new = machines.register_this(details("new"), "default")
    assert machines.of_this_worker("default") == new
    assert machines.of_pool("default") == [new]


def test_equal_computers_and_two_pools_of_one_are_machines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one = machines.register_this(details(), "default")
    other_pool = machines.register_this(details(), "gpu")
    monkeypatch.setattr(machines.socket, "gethostname", lambda: "another")
    other_host = machines.register_this(details(), "default")
    assert len({one.pk, other_pool.pk, other_host.pk}) == 3
    assert machines.of_this_worker("default") == other_host
    assert set(machines.latest()) == {one, other_pool, other_host}


def test_the_two_latest_states_of_a_machine_come_in_the_order_they_were_first_seen() -> None:
    states = [machines.register_this(details(name), "default") for name in ("a", "b", "c")]
    assert machines.last_two() == states[1:]
    again = machines.register_this(details("a"), "default")
    assert machines.last_two() == [again, states[2]]
    assert machines.history(again) == states


def test_a_worker_that_lives_says_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PROGRAM", FAKE)
    presence = machines.Presence("default")
    presence.tell()
    first = Machine.objects.get().last_seen
    presence.tell()
    assert Machine.objects.get().last_seen > first


def test_a_computer_that_could_not_be_looked_at_is_looked_at_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []

    def look(pool: str) -> Any:
        looks.append(pool)
        return "registered" if len(looks) == 2 else None

    now = [0.0]
    monkeypatch.setattr(machines, "look_at_this", look)
    presence = machines.Presence("default", clock=lambda: now[0])
    for now[0], expected in ((0.0, 1), (machines.AGAIN_S - 1, 1), (machines.AGAIN_S, 2), (10 * machines.AGAIN_S, 2)):
        presence.tell()
        assert len(looks) == expected


def test_a_machine_is_silent_after_a_minute_without_a_sign_of_life() -> None:
    machine = machines.register_this(details(), "default")
    assert not machines.is_silent(machine, machine.last_seen + timedelta(seconds=59))
    assert machines.is_silent(machine, machine.last_seen + timedelta(seconds=61))


def test_the_device_is_the_gpu_where_there_is_one() -> None:
    assert memory.device_bytes(details(memory_bytes=5)) == 5
    assert memory.device_bytes(details(gpus=[{"memory_bytes": 7}])) == 7


def test_what_no_machine_can_hold_is_refused_with_both_figures() -> None:
    machines.register_this(details("small", 1_500_000_000), "default")
    with pytest.raises(DoesNotFit, match=r"^measuring olmoe-1b-7b needs \d\.\d GB and the device has 1\.5 GB free$"):
        memory.check(make.experiment(), "default")


def test_one_machine_that_is_large_enough_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    machines.register_this(details("small", 1_500_000_000), "default")
    monkeypatch.setattr(machines.socket, "gethostname", lambda: "another")
    machines.register_this(details("large", 24_000_000_000), "default")
    memory.check(make.experiment(), "default")


def test_a_pool_nobody_knows_refuses_nothing() -> None:
    memory.check(make.experiment(), "gpu")


def test_more_requests_than_the_trace_holds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n")
    import_trace(tmp_path / "mine.csv")
    base = {"model": "olmoe-1b-7b", "workload": {"trace": "mine", "requests": 2}}
    with pytest.raises(SpecError) as refused:
        memory.check(make.experiment(traces=frozenset(["mine"]), base=base), "default")
    assert refused.value.field == "base.workload.trace"
    assert refused.value.message == "mine: holds 1 requests, and 2 are asked for"


def test_the_form_refuses_before_anything_is_queued(signed_in: Any) -> None:
    machines.register_this(details("small", 1_500_000_000), "default")
    typed = {"model": "mixtral-8x7b", "layers": "2", "concurrency": "1", "prompt_tokens": "16"}
    response = signed_in.post("/experiments/new/", typed)
    assert response.status_code == 422
    [sentence] = response.context["form"].non_field_errors()
    assert sentence.startswith("measuring mixtral-8x7b needs ")
    assert sentence.endswith(" GB and the device has 1.5 GB free")
    assert sentence in response.content.decode()
    assert not Experiment.objects.exists()


def test_a_claim_notes_the_machine_of_the_worker(no_broker: None) -> None:
    machine = machines.register_this(details(), "default")
    queue.enqueue(make.experiment(), author=None)
    row = queue.claim("default", machines.of_this_worker("default"))
    assert row is not None
    assert row.machine == machine
