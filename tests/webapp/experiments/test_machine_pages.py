"""The machines' pages: which there are, whether they are heard of, and what changed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.webapp.experiments.rows import MACHINE, done, ended, measuring, run, text_of, title_of
from webapp.experiments import machines
from webapp.experiments.models import Machine, State

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]
NEWER = MACHINE | {"fingerprint": "beef", "versions": {"torch": "2.14.0"}, "threads": 1}


def test_without_machines_the_list_says_what_will_be_there(signed_in: Any) -> None:
    text = text_of(signed_in.get("/machines/"))
    assert "Each computer will be listed here as soon as a worker starts on it." in text
    assert "Queue an experiment meanwhile" in text


def test_the_list_has_every_machine_once_with_its_state_and_last_change(
    signed_in: Any, member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines.socket, "gethostname", lambda: "one")
    machines.register_this(MACHINE, "default")
    machines.register_this(NEWER, "default")
    monkeypatch.setattr(machines.socket, "gethostname", lambda: "two")
    row = measuring(member)
    text = text_of(signed_in.get("/machines/"))
    assert f"AMD EPYC, 2 cores two default measures #{row.pk} nothing since it is known just now" in text
    assert "one default ready torch 2.13.0 → 2.14.0, Threads – → 1 just now just now" in text
    assert text.count("AMD EPYC, 2 cores") == 2


def test_two_pools_on_one_computer_are_two_lines(signed_in: Any) -> None:
    machines.register_this(MACHINE, "cpu")
    machines.register_this(MACHINE, "gpu")
    rows = signed_in.get("/machines/").context["rows"]
    assert [line.machine.pool for line, _ in rows] == ["cpu", "gpu"]


def test_a_machine_says_what_it_is_and_that_it_is_heard_of(signed_in: Any) -> None:
    machine = machines.register_this(MACHINE | {"state": {"load_average": [0.5, 0, 0]}}, "default")
    response = signed_in.get(machine.get_absolute_url())
    text = text_of(response)
    assert title_of(response) == "Ready · AMD EPYC, 2 cores · Moescope"
    assert "Healthy: its worker was heard of just now, and is ready for work." in text
    assert "Fingerprint f00d" in text
    assert "Processor AMD EPYC Cores 2 Memory 24.0 GB torch 2.13.0" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "Load 0.500 over the last minute" in text
    assert "Nothing since it is known" in text
    assert "Experiments that ended on this machine will be listed here." in text


def test_a_machine_whose_environment_limits_its_threads_says_so(signed_in: Any) -> None:
    flag = "OMP_NUM_THREADS=1 in the environment keeps the CPU's work to 1 of 2 cores: unset it"
    limited = machines.register_this(MACHINE | {"threads_flag": flag}, "default")
    assert flag in text_of(signed_in.get(limited.get_absolute_url()))
    free = machines.register_this(MACHINE | {"threads_flag": None}, "default")
    assert "in the environment" not in text_of(signed_in.get(free.get_absolute_url()))


def test_a_busy_machine_leads_to_what_it_measures(signed_in: Any, member: Any) -> None:
    row = measuring(member)
    assert row.machine is not None
    response = signed_in.get(row.machine.get_absolute_url())
    assert "and measures Fusion" in text_of(response)
    assert title_of(response).startswith("Measures · ")


def test_a_silent_machine_says_since_when(signed_in: Any) -> None:
    machine = machines.register_this(MACHINE, "default")
    Machine.objects.update(last_seen=timezone.now() - timedelta(minutes=5))
    response = signed_in.get(machine.get_absolute_url())
    assert "Silent: its worker was last heard of 5 min ago." in text_of(response).replace("\N{NO-BREAK SPACE}", " ")
    assert title_of(response).startswith("Silent · ")


def test_what_changed_leads_to_the_earlier_states(signed_in: Any, member: Any) -> None:
    old = machines.register_this(MACHINE, "default")
    new = machines.register_this(NEWER, "default")
    text = text_of(signed_in.get(new.get_absolute_url()))
    assert "fingerprint beef Fact Before After torch 2.13.0 2.14.0 Threads – 1" in text
    response = signed_in.get(old.get_absolute_url())
    assert "See how it is now" in text_of(response)
    assert f'<a href="{new.get_absolute_url()}">how it is now</a>' in response.content.decode()


def test_recent_experiments_of_all_its_states_are_listed(signed_in: Any, member: Any) -> None:
    done(member, title="Early")
    new = machines.register_this(NEWER, "default")
    ended(run(member, title="Late"), State.FAILED)
    text = text_of(signed_in.get(new.get_absolute_url()))
    assert text.index("Late") < text.index("Early")


def test_an_unknown_machine_is_not_found(signed_in: Any) -> None:
    assert signed_in.get("/machines/99/").status_code == 404


@pytest.mark.parametrize("count", [1, 12])
def test_the_queries_do_not_grow(
    signed_in: Any, member: Any, count: int, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    for number in range(count):
        monkeypatch.setattr(machines.socket, "gethostname", lambda number=number: f"host {number}")
        machine = machines.register_this(MACHINE, "default")
        machines.register_this(NEWER, "default")
        measuring(member), done(member)
    with django_assert_num_queries(5):  # session, user; running, machines, their last two states
        signed_in.get("/machines/")
    with django_assert_num_queries(9):  # session, user; machine, its states, what runs, recent; tables, what waits,
        signed_in.get(machine.get_absolute_url())  # ceilings
