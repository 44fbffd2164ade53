"""Who did what, for the audit list: queued, canceled, changed, invited. One row a deed, never changed afterwards."""

from __future__ import annotations

from typing import Any

from webapp.accounts.models import Deed, User


def note(member: User, action: Deed.Action, subject: Any) -> None:
    """Write down that ``member`` did ``action`` to ``subject``, by what it is called now and where it is found.

    Call it in the transaction of the deed itself, so that neither is there without the other.
    """
    address = subject.get_absolute_url() if hasattr(subject, "get_absolute_url") else ""
    Deed.objects.create(
        member=member, name=member.get_username(), action=action, subject=str(subject)[:300], address=address
    )
