"""E-mail, where the settings name a server. A server that is away holds up nobody's work."""

from __future__ import annotations

import logging
import smtplib

from django.conf import settings
from django.core.mail import send_mail

log = logging.getLogger(__name__)


def is_set_up() -> bool:
    return bool(settings.EMAIL_URL)


def send(subject: str, text: str, address: str) -> bool:
    """Whether ``text`` was handed to the mail server; else the log says why not. The text itself is never logged."""
    if not (is_set_up() and address):
        return False
    try:
        return send_mail(subject, text, None, [address]) == 1
    except (OSError, smtplib.SMTPException) as error:
        log.warning("No e-mail %r to %s: %s", subject, address, error)
        return False
