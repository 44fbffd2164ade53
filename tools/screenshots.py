"""Takes the pictures in docs/images from a fresh product: ``python -m tools.screenshots``.

Starts the product on an empty data directory, waits for the first look to end, photographs it, and prints the figures
that the README quotes from it. On a machine that does nothing else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from bench_worker.result import Result

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
BROWSER_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 6 * 60_000


def main() -> int:
    chromium = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    if chromium is None:
        print("tools.screenshots needs a browser: install the package chromium", file=sys.stderr)
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "manage.py", "up", "--port", "0", "--data", data]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as product:
            try:
                link = _sign_in_link(product)
                with sync_playwright() as playwright:
                    _take(playwright.chromium.launch(executable_path=chromium, args=BROWSER_ARGS), link)
            finally:
                product.terminate()
                product.communicate()  # it says good-bye: someone must listen
    return 0


def _sign_in_link(product: subprocess.Popen[str]) -> str:
    assert product.stdout is not None
    for line in product.stdout:
        if found := re.search(r"http://\S+/sign-in/\S+", line):
            return found.group(0)
    raise RuntimeError("the product ended before it printed a sign-in link")


def _take(browser: Browser, link: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light", device_scale_factor=1)
    page = context.new_page()
    page.goto(link)
    page.goto(f"{link.partition('/sign-in/')[0]}/experiments/1/")
    page.locator('a[href$="/result/"]').wait_for(timeout=PATIENCE_MS)  # there once all of it is
    page.mouse.move(0, 0)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=IMAGES / "experiment.png")
    _print_figures(Result.model_validate(page.request.get(f"{page.url}result/").json()))
    browser.close()


def _print_figures(result: Result) -> None:
    machine = result.environment
    print(f"{machine['name']}, {datetime.now(UTC):%Y-%m-%d}, load {machine['state']['load_average'][0]:.1f}")
    for run in result.runs:
        if (summary := run.summary) is not None:
            shares = sorted(summary.stage_share.items(), key=lambda item: -item[1])
            stages = ", ".join(f"{stage} {share:.1%}" for stage, share in shares)
            step_ms, layer_ms = summary.step_us.p50 / 1000, summary.layer_us.p50 / 1000
            times = f"step {step_ms:.1f} ms, layer {layer_ms:.2f} ms, {summary.step_us.samples} steps"
            print(f"{run.condition}: {times}; {stages}")


if __name__ == "__main__":
    sys.exit(main())
