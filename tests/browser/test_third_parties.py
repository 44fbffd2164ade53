"""No page asks anyone but the product for anything: it works in a network that leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bench_worker.result import Result
from tests.webapp.experiments import make
from webapp.experiments import queue
from webapp.experiments.ingest import ingest
from webapp.ui.finders import NODE_MODULES, VENDOR_FILES

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("/", "/experiments/", "/experiments/new/", "/experiments/new/?as=json", "/traces/", "/password/", "/nowhere/")
OURS = sorted(ROOT.glob("webapp/*/static/**/*.*"))
TEMPLATES = sorted(ROOT.glob("webapp/*/templates/**/*.html"))


@pytest.fixture
def done(transactional_db: None, no_broker: None) -> str:
    """The address of an experiment with results, charts and all."""
    asked = make.experiment()
    queue.enqueue(asked, author=None)
    row = queue.claim("default")
    assert row is not None
    fence = queue.fence_of(row)
    assert queue.begin_ingest(fence)
    measured: Result = make.result(asked)
    assert ingest(fence, measured)
    return str(row.get_absolute_url())


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_every_request_goes_to_the_product(signed_in_page: Any, live_server: Any, done: str) -> None:
    asked: list[str] = []
    signed_in_page.context.on("request", lambda request: asked.append(request.url))
    for address in (done, *PAGES):
        signed_in_page.goto(live_server.url + address)
        signed_in_page.wait_for_load_state("networkidle")
    signed_in_page.context.clear_cookies()
    signed_in_page.goto(f"{live_server.url}/sign-in/")
    assert any("chart" in address for address in asked)
    own = urlsplit(live_server.url).netloc
    assert {urlsplit(address).netloc for address in asked if not address.startswith("data:")} == {own}


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_template_loads_from_elsewhere(file: Path) -> None:
    """A link may lead out; nothing that a browser fetches by itself may."""
    for tag in re.findall(r"<(?!a\b)[a-z]+\b[^>]*>", file.read_text()):
        assert not re.search(r"=[\"'](https?:)?//", tag), tag


@pytest.mark.parametrize("file", [path for path in OURS if path.suffix in (".css", ".js")], ids=lambda file: file.name)
def test_no_style_or_script_of_ours_names_another_host(file: Path) -> None:
    assert not re.search(r"https?://", file.read_text())


@pytest.mark.parametrize("name", VENDOR_FILES.values())
def test_no_style_that_we_serve_fetches_from_elsewhere(name: str) -> None:
    file = NODE_MODULES / name
    if not file.exists():
        pytest.skip("needs the npm packages: make setup")
    if file.suffix == ".css":
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", file.read_text())
