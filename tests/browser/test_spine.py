"""The whole path on the running product: sign in, ask, watch, read, cancel, and a measurement that is killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from bench_worker.result import Result
from tests.webapp.experiments.waiting import wait_until

pytestmark = pytest.mark.browser
#: How the measuring program's command line goes on; its guard's names another program first.
MEASURING = ["-m", "bench_worker"]
ROOT = Path(__file__).parents[2]
#: A real measurement with its start on a busy machine, in milliseconds.
MEASURED_MS = 120_000


class Product(NamedTuple):
    process: subprocess.Popen[str]
    address: str
    link: str

    def measuring(self) -> list[psutil.Process]:
        """The measuring programs that its workers run."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended in between, or ends: nothing that measures
                found += [process] if process.cmdline()[1:3] == MEASURING else []
        return found


@pytest.fixture(scope="module")
def data() -> Iterator[str]:
    """Not below pytest's own directory: another test run closes that to the user who runs Postgres."""
    with tempfile.TemporaryDirectory(prefix="m-") as directory:
        yield directory


@pytest.fixture(scope="module")
def cache(data: str) -> Path:
    """Where the product's worker keeps its machine's ceilings; it has to measure them first."""
    return Path(data, "cache")


@pytest.fixture(scope="module")
def product(data: str, cache: Path) -> Iterator[Product]:
    """``manage.py up`` on an empty data directory and a free port, as `make run` starts it."""
    command = [sys.executable, "manage.py", "up", "--port", "0", "--data", data]
    own = {"DJANGO_SETTINGS_MODULE", "DATABASE_URL", "BROKER_URL", "MOESCOPE_DATA"}  # the test run's
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment["MOESCOPE_CACHE"] = str(cache)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"(http://\S+?)(/sign-in/\S+)", line):
                break
        else:
            pytest.fail(f"it did not start:\n{said}")
        try:
            yield Product(process, found[1], found[0])
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@pytest.fixture(scope="module")
def signed_in_state(product: Product, browser: Browser) -> Any:
    """What a browser keeps after the printed link let it in; the link works once."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(product.link)
    expect(page.get_by_role("heading", level=1)).to_have_text("What is happening")
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def browser_context_args(browser_context_args: dict[str, Any], signed_in_state: Any) -> dict[str, Any]:
    return browser_context_args | {"storage_state": signed_in_state}


@pytest.fixture
def complaints(page: Page) -> list[str]:
    """What the browser's console says, but for a question to the server that was dropped because the page was left."""
    said: list[str] = []
    left = ("htmx:sendAbort", "htmx:afterRequest")
    page.on(
        "console",
        lambda message: (
            said.append(message.text)
            if message.type in ("error", "warning") and not message.text.startswith(left)
            else None
        ),
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


def ask(page: Page, product: Product, **texts: str) -> None:
    """Fill in the form by its labels and send it."""
    page.goto(f"{product.address}/experiments/new/")
    for label, text in texts.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(text)
    page.get_by_role("button", name="Queue experiment").click()


def test_the_path_of_an_experiment(
    page: Page, product: Product, cache: Path, complaints: list[str], tmp_path: Path
) -> None:
    # the first look already runs: cancel it
    page.goto(product.address)
    page.get_by_role("link", name=re.compile("First look")).click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile("^Canceled"))).to_be_visible(timeout=MEASURED_MS)
    assert wait_until(lambda: not product.measuring())

    # a bad value is refused beside its field, and what was typed stays
    ask(page, product, Title="Two ways", MoE_layers="17", Requests="2", Prompt_tokens="16", Output_tokens="4")
    expect(page.get_by_text("17 is above the 16 MoE layers of olmoe-1b-7b")).to_be_visible()
    expect(page.get_by_label("Title")).to_have_value("Two ways")
    complaints.clear()  # the browser reports the refusal itself

    # mended, it is queued; results appear on the same page, without another load
    page.get_by_label("MoE layers").fill("1")
    page.get_by_label("Concurrency").fill("1, 2")
    page.get_by_label("What changes").select_option("kernels.fusion")
    page.get_by_label("Its values").fill("gate_up, none")
    expect(page.get_by_text("2 variants × 2 corners")).to_be_visible()
    page.get_by_role("button", name="Queue experiment").click()
    page.wait_for_url(re.compile(r"/experiments/\d+/$"))
    page.evaluate("window.loadedOnce = true")
    expect(page.get_by_role("heading", name="How sure")).to_be_visible(timeout=MEASURED_MS)
    assert page.evaluate("window.loadedOnce") is True
    expect(page).to_have_title(re.compile("^Done · Two ways"))
    expect(page.locator("canvas[data-chart]")).to_have_count(7)
    drawn = "[...document.querySelectorAll('canvas')].every(canvas => Chart.getChart(canvas))"
    assert wait_until(lambda: page.evaluate(drawn))  # once what was swapped in has settled
    expect(page.get_by_role("row", name=re.compile("^none ")).first).to_contain_text("×16")

    # the result comes down as it was measured
    with page.expect_download() as download:
        page.get_by_role("button", name="Result").click()
    file = tmp_path / "result.json"
    download.value.save_as(file)
    runs = Result.model_validate_json(file.read_bytes()).runs
    assert [(run.variant, run.condition) for run in runs] == [
        ("gate_up", "1×16"), ("none", "1×16"), ("gate_up", "2×16"), ("none", "2×16")
    ]  # fmt: skip
    for run in runs:
        assert run.steps is not None
        assert sum(run.steps.prefill_tokens) == 2 * 16
        assert sum(run.steps.decode_tokens) == 2 * 3

    # what the machine can do at best was measured before, and kept
    assert list(cache.glob("ceilings-*.json"))
    assert complaints == []


def test_a_killed_measurement_is_told_and_the_next_one_runs(
    page: Page, product: Product, cache: Path, kept_ceilings: Path, complaints: list[str]
) -> None:
    shutil.copytree(kept_ceilings, cache, dirs_exist_ok=True)
    ask(page, product, Title="Long", Requests="1000", Prompt_tokens="16", Output_tokens="400")
    expect(page.get_by_text(re.compile("step .* of"))).to_be_visible(timeout=MEASURED_MS)
    [program] = product.measuring()
    program.kill()
    expect(page.get_by_text("killed (SIGKILL)")).to_be_visible(timeout=MEASURED_MS)

    ask(page, product, Title="Next", Requests="1", Concurrency="1", Prompt_tokens="16", Output_tokens="2")
    expect(page.get_by_text(re.compile("^A step takes"))).to_be_visible(timeout=MEASURED_MS)
    assert complaints == []
