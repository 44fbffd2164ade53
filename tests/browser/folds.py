"""Folded parts of a page."""

from __future__ import annotations

from playwright.sync_api import Page


def unfold(page: Page, heading: str) -> None:
    """Open the fold with ``heading`` in its first line, as a reader does."""
    page.locator("summary", has_text=heading).click()
