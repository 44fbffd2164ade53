"""The fake measuring program as another computer in each pool; see `fake_worker`."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.webapp.experiments import fake_worker, make

pool = os.environ["MOESCOPE_POOL"]
make.MACHINE.update(name=f"bench of {pool}", fingerprint=f"fingerprint-{pool}")
sys.exit(fake_worker.main())
