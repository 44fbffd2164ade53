"""Every page, room by room."""

from django.urls import include, path

from webapp.health import healthz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("", include("webapp.accounts.urls")),
    path("", include("webapp.traces.urls")),
    path("", include("webapp.experiments.urls")),
    path("", include("webapp.history.urls")),
    path("", include("webapp.api.urls")),
]

handler500 = "webapp.api.problems.fault"
