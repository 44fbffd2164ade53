from datetime import timedelta

import pytest
from django.template import engines
from django.test import RequestFactory
from django.utils import timezone

from webapp.ui.charts import stage_colour
from webapp.ui.formatting import NBSP


def render(source, request=None, **context):
    return engines["django"].from_string(source).render(context, request)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 3140|duration_us }}", f"3.14{NBSP}ms"),
        ("{{ 3.14|duration_ms }}", f"3.14{NBSP}ms"),
        ("{{ 61000000000|size }}", f"61.0{NBSP}GB"),
        ("{{ 0.82|change }}", f"▼{NBSP}18%"),
        ("{{ missing|percent }}", "–"),
    ],
)
def test_templates_write_numbers_with_the_one_formatter(source, text):
    assert render(source, missing=None) == text


def test_ago_counts_to_now():
    assert render("{{ then|ago }}", then=timezone.now() - timedelta(minutes=5)) == f"5{NBSP}min ago"


@pytest.mark.parametrize(("address", "marked"), [("/traces/", True), ("/traces/x/", False)])
def test_the_link_of_the_page_one_is_on_is_marked(address, marked):
    html = render("{% nav_link '/traces/' 'Traces' %}", RequestFactory().get(address))
    assert html == f'<a href="/traces/"{" aria-current=" + chr(34) + "page" + chr(34) if marked else ""}>Traces</a>'


def test_a_chart_carries_its_configuration_its_label_and_a_fallback():
    config = {"type": "bar", "data": {"labels": ["</script>"]}}
    html = render("{% chart 'stages' config 'Stages by corner' 'low' %}", config=config)
    assert '<figure class="chart low">' in html
    label = 'role="img" aria-label="Stages by corner" id="chart-stages">Stages by corner</canvas>'
    assert f'data-chart="stages" {label}' in html
    assert '<script id="stages" type="application/json">' in html
    assert "</script>" not in html.split('type="application/json">')[1].rpartition("</script>")[0]


@pytest.mark.parametrize(
    ("stage", "colour"),
    [
        ("experts", "var(--stage-experts)"),
        ("route.gate", "var(--stage-route)"),
        ("idle", "hatched var(--stage-idle)"),
    ],
)
def test_a_stage_keeps_its_colour_and_lends_it_to_its_parts(stage, colour):
    assert stage_colour(stage) == colour
