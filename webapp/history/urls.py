from django.urls import include, path

from webapp.history import schedule_views, series_views

_schedules = [
    path("", schedule_views.schedule_list, name="list"),
    path("new/", schedule_views.new, name="new"),
    path("<int:pk>/", schedule_views.detail, name="detail"),
    path("<int:pk>/change/", schedule_views.change, name="change"),
    path("<int:pk>/switch/", schedule_views.switch, name="switch"),
    path("<int:pk>/run/", schedule_views.run_now, name="run"),
    path("<int:pk>/delete/", schedule_views.delete, name="delete"),
]
_history = [
    path("", series_views.overview, name="overview"),
    path("last-night/", series_views.last_night, name="last-night"),
    path("<int:pk>/", series_views.series, name="series"),
    path("changes/<int:pk>/triage/", series_views.triage, name="triage"),
]

urlpatterns = [
    path("history/", include((_history, "history"))),
    path("schedules/", include((_schedules, "schedules"))),
]
