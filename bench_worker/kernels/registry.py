"""The one list of expert backends."""

from __future__ import annotations

from bench_worker.kernels.base import ExpertBackend
from bench_worker.kernels.deepspeed_grouped import DeepSpeedGrouped

EXPERT_BACKENDS: dict[str, type[ExpertBackend]] = {"deepspeed": DeepSpeedGrouped}
