"""Measures one step of a variant, with all that is looked at beside its stages' times."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from bench_worker import roofline
from bench_worker.cuda_steps import DecodeGraphs, idle_share_of_step
from bench_worker.recording import RunRecord, StepRecord
from bench_worker.rotation import WHOLE_CLOCK_EVERY
from bench_worker.stages import LAYER, StageClock, WholeClock
from bench_worker.step_input import StepInput
from bench_worker.variant import Variant
from bench_worker.workload.schedule import Batch

#: Steps of a run that the profiler watches (CUDA).
PROFILED_STEPS = 8


class Meter:
    """The clocks of an experiment, which its variants share."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._stage_clock, self._whole_clock = StageClock(device), WholeClock(device)
        self._graphs: dict[Variant, DecodeGraphs] = {}

    def begin_condition(self, variants: Iterable[Variant]) -> None:
        """Forget the CUDA graphs of the condition before: the buffers that they read may have moved."""
        if self._cuda:
            self._graphs = {v: DecodeGraphs(v) for v in variants if DecodeGraphs.possible(v)}

    def discard(self, variant: Variant, inputs: StepInput) -> None:
        """A step that warms up: as `measure` runs it, and nothing is kept."""
        variant.step(inputs, self._stage_clock)

    def measure(self, variant: Variant, inputs: StepInput, record: RunRecord, index: int, batch: Batch) -> None:
        """One step under the stage clock and, on one in `WHOLE_CLOCK_EVERY`, also under the whole clock; which of the
        two comes first alternates."""
        turn, rest = divmod(index, WHOLE_CLOCK_EVERY)
        whole_us = None
        if rest == 0 and turn % 2:
            whole_us = self._whole_layer_us(variant, inputs)
        routed = variant.step(inputs, self._stage_clock)
        times_us = self._stage_clock.read()
        if rest == 0 and not turn % 2:
            whole_us = self._whole_layer_us(variant, inputs)
        if rest == 0 and self._cuda:
            self._sample_device(variant, inputs, record, decoding=batch.prefill_tokens == 0)

        outcome = variant.outcome(inputs, routed)
        row_bytes = variant.network.model.hidden * variant.network.dtype.itemsize
        record.add(
            StepRecord(
                index=index,
                prefill_tokens=batch.prefill_tokens,
                decode_tokens=batch.decode_tokens,
                assignments=outcome.assignments,
                dropped=outcome.dropped,
                rows=variant.computed_rows(outcome.rows, batch.tokens),
                moved_bytes=2 * outcome.assignments * row_bytes,  # there and back
                times_us=times_us,
                whole_us=whole_us,
                work=roofline.step_work(variant.spec, variant.network.model, batch, outcome.rows),
            ),
            outcome,
        )

    def _sample_device(self, variant: Variant, inputs: StepInput, record: RunRecord, decoding: bool) -> None:
        """What only a sample of the steps can tell, since it takes the step several times more."""
        graphs = self._graphs.get(variant)
        if decoding and graphs is not None:
            record.graph_us.append(graphs.times_us(inputs.scores[0]))
        if len(record.device_idle) < PROFILED_STEPS:
            record.device_idle.append(idle_share_of_step(variant, inputs))

    def _whole_layer_us(self, variant: Variant, inputs: StepInput) -> float:
        """The MoE layers of the step, timed without their stages."""
        variant.step(inputs, self._whole_clock)
        return self._whole_clock.read()[LAYER]
