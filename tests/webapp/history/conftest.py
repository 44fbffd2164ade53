from __future__ import annotations

from typing import Any

import pytest

from tests.webapp.history.make_nights import schedule
from webapp.history.models import Schedule


@pytest.fixture
def planned(member: Any) -> Schedule:
    """Without a night yet."""
    return schedule(member)
