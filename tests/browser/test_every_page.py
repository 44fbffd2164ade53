"""Every page with nothing, one thing and many things on it: wide and narrow, light and dark.

No page is wider than the screen, moves while it loads, writes to the console, asks another server for anything, or
breaks a rule of axe-core, among them a text contrast of at least 4.5:1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.furnish import UNBROKEN, furnish
from tests.webapp.experiments.waiting import wait_until
from webapp.accounts import audit, tokens
from webapp.accounts.models import Deed, Scope
from webapp.ui.finders import NODE_MODULES

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

AXE = NODE_MODULES / "axe-core" / "axe.min.js"
LISTS = {
    "home": "/",
    "list": "/experiments/",
    "filtered": "/experiments/?state=done&q=night",
    "nothing found": "/experiments/?q=nothing+like+it",
    "bad filter": "/experiments/?state=lost",
    "deleted": "/experiments/?state=deleted",
    "compare": "/compare/",
    "compare filtered": "/compare/?strategy=token_choice&q=fusion",
    "nothing to compare": "/compare/?q=nothing+like+it",
    "refused comparison": "/compare/?runs=9999991,9999992",
    "capacity": "/capacity/",
    "too large": "/capacity/?model=deepseek-v3&device=L40S&quantization=fp8",
    "own model": "/capacity/?as=config",
    "no answer": "/capacity/?tp=3&device=A1",
    "machines": "/machines/",
    "traces": "/traces/",
    "schedules": "/schedules/",
    "history": "/history/",
    "steady history": "/history/?steady=1",
}
FORMS = {"new": "/experiments/new/", "new as JSON": "/experiments/new/?as=json", "new schedule": "/schedules/new/"}
OTHERS = {"password": "/password/", "not found": "/nowhere/", "used link": "/sign-in/x/"}
#: The colours in which a page is loaded at each width, and those that it then switches to.
SCREENS: dict[int, tuple[Any, Any]] = {1280: ("light", "dark"), 390: ("dark", "light")}

WATCH_SHIFTS = """
window.shifts = [];
const outside = ({ node }) => node?.parentElement?.outerHTML.slice(0, 120);
new PerformanceObserver((list) => {
  for (const { value, sources } of list.getEntries()) window.shifts.push(`${value} ${sources.map(outside)}`);
}).observe({ type: "layout-shift", buffered: true });
"""
#: All that the page asked for has come, and what came has been painted.
DRAWN = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  do { await frame(); await frame(); } while (document.querySelector(".htmx-request"));
}"""
#: What is folded is part of the page.
UNFOLD = "for (const fold of document.querySelectorAll('main details:not(.menu)')) fold.open = true"
#: All rules, or the one that is named. None of them asks what style sheets say, so they are not fetched again.
RUN_AXE = """async (rule) => {
  const options = { resultTypes: ["violations"], preload: { assets: ["media"] } };
  const { violations } = await axe.run(document, { ...options, ...(rule && { runOnly: [rule] }) });
  const words = (id) => ({ html, any }) => `${id}: ${html.slice(0, 120)} ${any[0]?.message ?? ""}`;
  return violations.flatMap(({ id, nodes }) => nodes.map(words(id)));
}"""


class Visit:
    """A browser page that notes what goes wrong on each page it is led to."""

    def __init__(self, page: Page, server: str) -> None:
        self.page, self.server = page, server
        self.complaints: list[str] = []
        page.add_init_script(WATCH_SHIFTS)
        page.add_init_script(path=AXE)  # as the policy lets no foreign script in, it comes by the debugger
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "request",
            lambda asked: None if asked.url.startswith((server, "data:")) else self.complaints.append(asked.url),
        )

    def problems(self, address: str, width: int) -> Iterator[str]:
        """What is wrong with the page in the colours that it is loaded in, then in those that it switches to.

        The second time only what colours can change is looked at.
        """
        loaded, switched = SCREENS[width]
        self.complaints.clear()
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.emulate_media(color_scheme=loaded, reduced_motion="no-preference")
        response = self.page.goto(self.server + address, wait_until="load")
        assert response is not None
        self.page.evaluate(DRAWN)
        yield from (f"moved: {shift}" for shift in self.page.evaluate("window.shifts"))
        if self.page.locator("h1").count() != 1:
            yield "has not one h1"
        if response.status >= 400:
            self.complaints.clear()  # the browser itself reports these
        self.page.evaluate(UNFOLD)
        self.page.evaluate(DRAWN)
        yield from self._seen(width, loaded)
        self.complaints.clear()  # they were told
        # pages honour the wish for less motion, so no colour is between two others when its contrast is read
        self.page.emulate_media(color_scheme=switched, reduced_motion="reduce")
        self.page.evaluate(DRAWN)
        yield from self._seen(width, switched, "color-contrast")

    def _seen(self, width: int, scheme: str, rule: str | None = None) -> Iterator[str]:
        scrolls = self.page.evaluate("document.documentElement.scrollWidth")
        if scrolls > width:
            yield f"{scheme}: {scrolls} px wide"
        yield from (f"{scheme}: {complaint}" for complaint in self.complaints)
        yield from (f"{scheme}: {violation}" for violation in self.page.evaluate(RUN_AXE, rule))


@pytest.fixture
def visit(page: Page, live_server: Any, no_broker: None) -> Visit:
    return Visit(page, live_server.url)


def problems_at(visit: Visit, addresses: dict[str, str]) -> list[str]:
    return [
        f"{name} at {width} px: {problem}"
        for width in SCREENS  # outside: to resize a page before it is left means to draw it once more
        for name, address in addresses.items()
        for problem in visit.problems(address, width)
    ]


@pytest.mark.parametrize(("count", "pages"), [(0, LISTS | FORMS | OTHERS), (1, LISTS), (500, LISTS | FORMS)])
def test_every_page_is_in_order(
    visit: Visit, signed_in_page: Page, member: Any, count: int, pages: dict[str, str]
) -> None:
    found = problems_at(visit, pages | furnish(member, count))
    assert not found, "\n".join(found)


def test_the_pages_for_strangers_are_in_order(visit: Visit, settings: Any) -> None:
    settings.EMAIL_URL = "smtp://mail.example"
    found = problems_at(
        visit, {name: f"/{name}/" for name in ("sign-in", "password/forgotten", "password/forgotten/x/x")}
    )
    assert not found, "\n".join(found)


def test_the_pages_of_administrators_are_in_order(
    visit: Visit, signed_in_page: Page, member: Any, django_user_model: Any
) -> None:
    member.role = "admin"
    member.save()
    pages = {"team": "/team/", "deeds": "/team/deeds/", "tokens": "/tokens/"}
    found = problems_at(visit, pages)
    for number in range(30):
        name = f"{number}{UNBROKEN[:140]}"
        user = django_user_model.objects.create_user(name, f"{name}@x.example")
        audit.note(member, Deed.Action.INVITED, user)
        tokens.issue(user, name[:100], [Scope.READ, Scope.RUN], None)
    found += problems_at(visit, pages)
    assert not found, "\n".join(found)


def test_what_is_out_of_order_is_noticed(visit: Visit) -> None:
    """The watch itself: a heading that is pushed down, and one that can hardly be read."""
    assert list(visit.problems("/sign-in/", 1280)) == []
    visit.page.evaluate("document.querySelector('h1').style.color = '#444'")
    assert any(problem.startswith("color-contrast: <h1") for problem in visit.page.evaluate(RUN_AXE))
    visit.page.evaluate("document.body.prepend(Object.assign(document.createElement('p'), { textContent: 'late' }))")
    assert wait_until(lambda: visit.page.evaluate("window.shifts.length") > 0)


@pytest.mark.parametrize(("width", "scheme", "colour"), [(1280, "dark", "#444"), (390, "light", "#bbb")])
def test_a_colour_is_noticed_that_comes_with_the_switch_and_slowly(
    visit: Visit, width: int, scheme: str, colour: str
) -> None:
    """In the colours that a page is loaded in the heading can be read."""
    style = f"@media (prefers-color-scheme: {scheme}) {{ h1 {{ color: {colour} }} }} h1 {{ transition: color 60s }}"
    visit.page.add_init_script(
        f"const late = new CSSStyleSheet(); late.replaceSync('{style}'); document.adoptedStyleSheets = [late];"
    )
    [problem] = visit.problems("/sign-in/", width)
    assert problem.startswith(f"{scheme}: color-contrast: <h1")
