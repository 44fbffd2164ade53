"""What a member does with an experiment that is there, in the browser or over the API: whether they may, the deed, and
its line in the audit list. Each raises `PermissionDenied`, in a sentence, for who may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.http import Http404

from bench_worker import spec
from bench_worker.kernel_report import Asked
from webapp.accounts import audit
from webapp.accounts.models import Deed, User
from webapp.accounts.roles import require_change
from webapp.experiments import memory, queue, upkeep
from webapp.experiments.models import Experiment, Kind
from webapp.traces.store import traces_library


def queue_again(by: User, row: Experiment) -> Experiment:
    """The same document as an experiment of its own. Raises `SpecError` or `DoesNotFit` for what can't run any more."""
    if row.kind == Kind.KERNELS:
        table = Asked.model_validate(row.document)
        memory.check_kernels(table, row.pool)
        return queue.enqueue_kernels(table, author=by, pool=row.pool, tags=row.tags)
    return queue_there(by, row, row.document)


def queue_advised(by: User, row: Experiment, place: int) -> Experiment:
    """What the verdict of ``row`` advises at ``place``, on the same pool. Raises as `queue_there`, and `Http404`."""
    advice = ((row.result or {}).get("verdict") or {}).get("advice", [])
    if place >= len(advice):
        raise Http404("The verdict gives no such advice.")
    return queue_there(by, row, advice[place]["experiment"])


def queue_there(by: User, row: Experiment, document: Mapping[str, Any]) -> Experiment:
    """``document`` in the pool and with the tags of ``row``. Raises `SpecError` or `DoesNotFit` for what can't run."""
    asked = spec.Experiment.model_validate(document, context=traces_library())
    memory.check(asked, row.pool)
    return queue.enqueue(asked, author=by, pool=row.pool, tags=row.tags)


def cancel(by: User, row: Experiment) -> bool:
    """False: it has ended, or its result is being stored."""
    require_change(by, row.author)
    with transaction.atomic():
        asked = queue.request_cancel(row.pk)
        if asked:
            audit.note(by, Deed.Action.CANCELED, row)
    return asked


@transaction.atomic
def describe(by: User, row: Experiment, *, title: str, tags: Sequence[str], notes: str) -> None:
    require_change(by, row.author)
    upkeep.describe(row.pk, title=title, tags=tags, notes=notes)
    audit.note(by, Deed.Action.CHANGED, row)


@transaction.atomic
def delete(by: User, row: Experiment) -> None:
    require_change(by, row.author)
    upkeep.delete(row.pk)
    audit.note(by, Deed.Action.DELETED, row)


@transaction.atomic
def restore(by: User, row: Experiment) -> bool:
    """False: it was never deleted."""
    require_change(by, row.author)
    restored = upkeep.restore(row.pk)
    if restored:
        audit.note(by, Deed.Action.RESTORED, row)
    return restored
