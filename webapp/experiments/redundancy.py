"""What redundant experts take from the KV cache (pure)."""

from __future__ import annotations

from typing import NamedTuple

from bench_worker import capacity
from bench_worker.spec import Spec

__all__ = ["Cost", "redundancy_cost"]


class Cost(NamedTuple):
    """Memory that redundant experts take on each rank, and the tokens whose KV cache it could hold there instead; None
    where tokens have none. ``requests``: how many fewer are held at once; None where no device is given."""

    copies: int
    bytes: int
    tokens: int | None
    requests: int | None


def redundancy_cost(spec: Spec, device_bytes: int | None = None) -> Cost | None:
    """Of the deployment on devices of ``device_bytes``; None where there are no redundant experts."""
    if not (copies := spec.parallel.redundant_experts):
        return None
    plain = spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"redundant_experts": 0})})
    fit, without = capacity.fit(spec, device_bytes), capacity.fit(plain, device_bytes)
    most, left = without.max_concurrency, fit.max_concurrency
    taken = fit.parts["experts"] - without.parts["experts"]
    return Cost(
        copies=copies,
        bytes=taken,
        tokens=taken // fit.kv_bytes_per_token if fit.kv_bytes_per_token else None,
        requests=None if most is None or left is None else most - left,
    )
