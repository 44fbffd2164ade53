"""Measures one step of a variant on several ranks."""

from __future__ import annotations

from bench_worker.parallel.counting import CountingVariant
from bench_worker.parallel.rank_around import work_of
from bench_worker.parallel.step import ParallelStep, bytes_by_domain, sent_by_domain
from bench_worker.parallel.variant import ParallelVariant
from bench_worker.rank_record import RankStep
from bench_worker.recording import RunRecord, StepRecord
from bench_worker.roofline import Work
from bench_worker.rotation import WHOLE_CLOCK_EVERY
from bench_worker.step_input import StepInput
from bench_worker.workload.schedule import Batch


def measure(
    variant: ParallelVariant | CountingVariant, inputs: StepInput, record: RunRecord, index: int, batch: Batch
) -> None:
    """One step and, on one in `WHOLE_CLOCK_EVERY`, once more as a whole; which of the two comes first alternates."""
    turn, rest = divmod(index, WHOLE_CLOCK_EVERY)
    whole = variant.whole(inputs) if rest == 0 and turn % 2 else None
    step = variant.run(inputs)
    if rest == 0 and not turn % 2:
        whole = variant.whole(inputs)
    sent, nodes = step.rows.sum(axis=0) * variant.row_bytes, variant.layout.node_of_rank()
    record.add(
        StepRecord(
            index=index,
            prefill_tokens=batch.prefill_tokens,
            decode_tokens=batch.decode_tokens,
            assignments=step.outcome.assignments,
            dropped=step.outcome.dropped,
            rows=int(step.computed.sum()),
            moved_bytes=2 * int(sent.sum()),
            times_us=step.timeline.of_slowest(),
            whole_us=None if whole is None else whole.layers_us(step.timeline.slowest),
            work=_work(variant, step, batch),
            ranks=RankStep(
                load=step.rows.sum(axis=1),
                rows=step.computed,
                stages_us=step.timeline.stages_us,
                idle_us=step.timeline.idle_us,
                bytes=bytes_by_domain(sent, nodes),
                dispatched_bytes=sent,
                group_bytes={} if step.group_bytes is None else sent_by_domain(step.group_bytes, nodes),
            ),
        ),
        step.outcome,
    )


def _work(variant: ParallelVariant | CountingVariant, step: ParallelStep, batch: Batch) -> dict[str, Work]:
    """Of the rank whose times are those of the step; empty where nothing was computed."""
    if isinstance(variant, CountingVariant):
        return {}
    slowest = step.timeline.slowest
    in_turn = variant.topology is not None
    around = work_of(slowest, variant.network, variant.layout, variant.spec, batch, in_turn=in_turn)
    return step.work[slowest] | around
