"""Settings of the product that the faults are tried on: its own, with the fake measuring program, and less waiting."""

import sys
from pathlib import Path

from webapp import supervisor
from webapp.experiments import launch
from webapp.settings import *  # noqa: F403

launch.PROGRAM = (sys.executable, str(Path(__file__).parents[1] / "webapp" / "experiments" / "fake_worker.py"))
launch.BEAT_S, launch.GRACE_S = 0.1, 0.5
supervisor.LAST_BACKOFF_S = 1.0
SWEEP_S = 1.0
