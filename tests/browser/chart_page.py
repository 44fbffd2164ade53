"""One page with a chart, as a room would write it; the browser tests serve it."""

from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import include, path

from webapp.ui.charts import stage_colour

CONFIG = {
    "type": "bar",
    "data": {
        "labels": ["1×128", "16×2048"],
        "datasets": [
            {"label": stage, "data": [300 * n, 4200 * n], "backgroundColor": stage_colour(stage)}
            for n, stage in enumerate(("experts", "idle"), start=1)
        ],
    },
    "options": {"indexAxis": "y", "unit": "us", "scales": {"x": {"stacked": True}, "y": {"stacked": True}}},
}
PAGE = """{% extends "base.html" %}
{% block title %}Chart{% endblock %}
{% block head %}{% include "ui/chart_scripts.html" %}{% endblock %}
{% block content %}
<h1>Chart</h1>
<div id="live" hx-get="/chart/" hx-select="#live" hx-swap="outerHTML" hx-trigger="click">
  {% chart "stages" config "Stage times at two corners" "low" %}
</div>
<pre id="command">python -m bench_worker run file.json</pre>
<button type="button" data-copy="command">Copy</button>
{% endblock %}"""


def chart(request: HttpRequest) -> HttpResponse:
    return HttpResponse(engines["django"].from_string(PAGE).render({"config": CONFIG}, request))


urlpatterns = [path("chart/", chart), path("", include("webapp.urls"))]
