"""What is asked of the model: requests, the batches that serve them, and router scores."""

from __future__ import annotations

from typing import NamedTuple


class Request(NamedTuple):
    """One request of a trace: when it arrives, in seconds from the trace's start, and its lengths in tokens."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
