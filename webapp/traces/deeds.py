"""What a member does with an entry that is there, in the browser or over the API."""

from __future__ import annotations

from django.db import transaction

from webapp.accounts import audit
from webapp.accounts.models import Deed, User
from webapp.accounts.roles import require_change
from webapp.traces import store
from webapp.traces.models import Recording, Trace


@transaction.atomic
def delete(by: User, entry: Trace | Recording) -> bool:
    """Remove it for good. False: an experiment names it. Raises `PermissionDenied`, in a sentence, for who may not."""
    require_change(by, entry.created_by)
    if not store.delete(entry):
        return False
    audit.note(by, Deed.Action.DELETED, entry.name)
    return True
