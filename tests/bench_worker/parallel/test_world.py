"""Where a rank computes: its share of the host's processors."""

import pytest

from bench_worker.parallel import world
from bench_worker.parallel.world import Alone, Place, World


@pytest.mark.parametrize(
    ("local_rank", "local_size", "own"),
    [(0, 2, [4, 5]), (1, 2, [6, 7]), (2, 3, [6]), (3, 4, [7]), (5, 8, [5])],  # eight ranks share four processors
)
def test_ranks_of_a_host_divide_its_processors(local_rank, local_size, own, monkeypatch):
    monkeypatch.setattr(world.host, "PROCESSORS", frozenset({4, 5, 6, 7}))
    place = Place(local_rank, local_size, local_rank, local_size)
    assert World(place, None).processors == own
    taken = []
    monkeypatch.setattr(world.os, "sched_setaffinity", lambda process, processors: taken.append(processors))
    world.pin(place)
    assert taken == [own]


def test_a_process_alone_has_them_all():
    assert Alone.processors == world.host.PROCESSORS
