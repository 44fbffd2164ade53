"""The fastest of several expert backends, by size of the step. Which one that is, `bench_worker.tuning` measures."""

from __future__ import annotations

from math import log

from bench_worker.kernels.base import ExpertBackend
from bench_worker.result import Choice


class Auto:
    """Runs a step on the backend that was fastest at the measured size nearest to it, by ratio.

    ``choices`` is shared by the layers of a variant, and filled by tuning. Before, the first candidate runs everything.
    """

    def __init__(self, candidates: dict[str, ExpertBackend], choices: list[Choice]) -> None:
        self.candidates = candidates
        self.choices = choices

    def at(self, num_tokens: int) -> ExpertBackend:
        return self.candidates[self.chosen(num_tokens)]

    def each(self) -> list[ExpertBackend]:
        return list(self.candidates.values())

    def chosen(self, num_tokens: int) -> str:
        """The name of the candidate that runs a step of ``num_tokens``."""
        if not self.choices:
            return next(iter(self.candidates))
        return min(self.choices, key=lambda choice: abs(log(choice.tokens / max(1, num_tokens)))).backend
