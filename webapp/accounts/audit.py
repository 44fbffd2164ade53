"""Who did what, for the audit list: queued, canceled, changed, invited. One row a deed, never changed afterwards."""

from __future__ import annotations

from typing import Any

from webapp.accounts.models import Deed, User


def note(who: User | str, action: Deed.Action, subject: Any) -> None:
    """Write down that ``who`` did ``action`` to ``subject``, by what it is called now and where it is found. ``who`` is
    a text for what acts by itself.

    Call it in the transaction of the deed itself, so that neither is there without the other.
    """
    member, name = (None, who) if isinstance(who, str) else (who, who.get_username())
    address = subject.get_absolute_url() if hasattr(subject, "get_absolute_url") else ""
    Deed.objects.create(member=member, name=name[:150], action=action, subject=str(subject)[:300], address=address)
