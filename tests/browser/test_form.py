"""The form in a real browser: which parameters it shows, and what one click or one key does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from bench_worker.strategies import STRATEGIES
from tests.browser.folds import unfold
from webapp.experiments import fields
from webapp.experiments.models import Experiment

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_broker")]
LABELS = {ask.name: ask.label for ask in fields.ASKS if ask.section == "routing" and ask.name != "strategy"}


@pytest.fixture(params=["with scripts", "without scripts"])
def form(request: Any, browser: Browser, live_server: Any, signed_in: Any) -> Iterator[Page]:
    """The form, signed in; what the browser complains about fails the test, but for a refusal, which it reports."""
    context = browser.new_context(java_script_enabled=request.param == "with scripts")
    session = signed_in.cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{live_server.url}/experiments/new/")
    yield page
    context.close()
    assert [text for text in said if "status of 422" not in text] == []


def shown(page: Page) -> set[str]:
    """Names of the parameters that can be seen."""
    return {name for name, label in LABELS.items() if page.get_by_label(label, exact=True).is_visible()}


def test_a_strategy_shows_only_its_own_parameters(form: Page) -> None:
    unfold(form, "More on kernels and routing")
    for name, strategy in STRATEGIES.items():
        form.get_by_label("Routing strategy").select_option(name)
        assert shown(form) == set(strategy.parameters)
        expect(form.get_by_text(strategy.summary)).to_be_visible()
        expect(form.locator("strong:visible", has_text="Non-causal")).to_have_count(0 if strategy.causal else 1)


def test_arrivals_show_only_their_own_field(form: Page) -> None:
    unfold(form, "Arrivals, KV cache and latency limits")
    rate, speedup = form.get_by_label("Requests a second"), form.get_by_label("Speed-up")
    for arrivals, seen in (("closed", (False, False)), ("poisson", (True, False)), ("trace", (False, True))):
        form.get_by_label("Arrivals").select_option(arrivals)
        assert (rate.is_visible(), speedup.is_visible()) == seen


def test_limits_need_the_latencies_of_requests(form: Page) -> None:
    unfold(form, "More on kernels and routing")
    unfold(form, "Arrivals, KV cache and latency limits")
    expect(form.get_by_label("TTFT limit, ms")).to_be_visible()
    form.get_by_label("Attention too").select_option("false")
    expect(form.get_by_label("TTFT limit, ms")).to_be_hidden()
    expect(form.get_by_label("KV cache, tokens")).to_be_visible()


def test_one_click_asks_for_all_strategies(form: Page) -> None:
    form.get_by_label("Title").fill("All of them")
    form.get_by_role("button", name="Compare all 7 routing strategies").click()
    expect(form.get_by_label("Its values")).to_have_value(", ".join(STRATEGIES))
    expect(form.get_by_text("7 variants × 4 corners")).to_be_visible()
    expect(form.get_by_label("Title")).to_have_value("All of them")
    assert shown(form) == {"top_k"}  # what they share; each starts from its own defaults
    form.get_by_role("button", name="Queue experiment").click()
    expect(form.get_by_role("heading", level=1)).to_have_text("All of them")
    assert len(Experiment.objects.get().plan) == 28


def test_what_is_wrong_is_seen_even_where_it_has_no_use(form: Page) -> None:
    unfold(form, "More on kernels and routing")
    form.get_by_label("Capacity factor").fill("-1")
    form.get_by_label("What changes").select_option("routing.strategy")
    form.get_by_label("Its values").fill("hash, soft")
    form.get_by_role("button", name="Queue experiment").click()
    expect(form.get_by_text("-1 is not allowed; it must be above 0")).to_be_visible()
    expect(form.get_by_label("Capacity factor")).to_be_visible()


def test_a_fold_is_open_where_one_of_its_fields_says_something_unusual(form: Page) -> None:
    folds = form.locator("form#ask details")
    expect(folds).to_have_count(3)
    expect(form.locator("form#ask details[open]")).to_have_count(0)
    unfold(form, "More on kernels and routing")
    form.get_by_label("Capacity factor").fill("1.5")
    form.get_by_role("button", name="Queue experiment").click()
    form.get_by_role("button", name="Clone").click()
    expect(form.locator("form#ask details[open] summary")).to_have_text(["More on kernels and routing"])
    expect(form.get_by_label("Capacity factor")).to_have_value("1.5")


def test_the_enter_key_queues(form: Page) -> None:
    form.get_by_label("MoE layers").press("Enter")
    expect(form.get_by_role("heading", level=1)).to_have_text("olmoe-1b-7b")
    assert Experiment.objects.get().plan


def test_the_drawing_of_the_ranks_follows_the_form(form: Page) -> None:
    expect(form.get_by_text("One rank holds all 64 experts.")).to_be_visible()
    expect(form.get_by_label("Tensor-parallel ranks")).to_be_hidden()
    form.get_by_label("Ranks", exact=True).select_option("distributed")
    expect(form.get_by_label("Placement")).to_be_visible()
    expect(form.get_by_label("Network")).to_be_hidden()
    form.get_by_label("Ranks", exact=True).select_option("virtual")
    expect(form.get_by_label("Network")).to_be_visible()
    form.get_by_label("Data-parallel groups").fill("4")
    form.get_by_label("Nodes").fill("2")
    unfold(form, "More on kernels and routing")
    form.get_by_label("Attention too").select_option("false")
    if form.evaluate("typeof htmx") == "undefined":
        return  # without scripts it is drawn when the form comes back
    expect(form.get_by_text("4 ranks on 2 nodes: attention in 4 groups of 1")).to_be_visible()
    expect(form.get_by_title("Rank 3: experts 48–63")).to_be_visible()
    form.get_by_label("Nodes").fill("3")
    expect(form.get_by_text("3 nodes don't divide 4 ranks")).to_be_visible()
