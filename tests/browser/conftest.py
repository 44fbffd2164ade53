from __future__ import annotations

from playwright.sync_api import expect

# Five seconds without it, which pages that ask a busy machine for news can take.
expect.set_options(timeout=30_000)
