"""What the team says about a change."""

from __future__ import annotations

from django import forms

from webapp.history.models import Triage

MAX_NOTE = 2000


class TriageForm(forms.Form):
    state = forms.ChoiceField(
        choices=Triage.choices,
        error_messages={"invalid_choice": f"%(value)s is not one of {', '.join(Triage.values)}."},
    )
    note = forms.CharField(
        max_length=MAX_NOTE,
        required=False,
        error_messages={"max_length": "The note has %(show_value)s characters; %(limit_value)s are allowed."},
    )
