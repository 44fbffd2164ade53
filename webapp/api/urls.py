"""The API. Its views let programs in themselves, by token; the schema and its page are for members."""

from django.urls import include, path

from webapp.api import docs, history, schedules, views

_v1 = [
    path("experiments/", views.ExperimentList.as_view(), name="experiments"),
    path("experiments/<int:pk>/", views.ExperimentOne.as_view(), name="experiment"),
    path("experiments/<int:pk>/result/", views.ExperimentResult.as_view(), name="result"),
    path("experiments/<int:pk>/cancel/", views.ExperimentCancel.as_view(), name="cancel"),
    path("experiments/<int:pk>/rerun/", views.ExperimentRerun.as_view(), name="rerun"),
    path("experiments/<int:pk>/restore/", views.ExperimentRestore.as_view(), name="restore"),
    path("runs/", views.RunList.as_view(), name="runs"),
    path("schedules/", schedules.ScheduleList.as_view(), name="schedules"),
    path("schedules/<int:pk>/", schedules.ScheduleOne.as_view(), name="schedule"),
    path("schedules/<int:pk>/switch/", schedules.ScheduleSwitch.as_view(), name="switch"),
    path("schedules/<int:pk>/run/", schedules.ScheduleRun.as_view(), name="run-now"),
    path("series/", history.SeriesList.as_view(), name="series"),
    path("series/<int:pk>/", history.SeriesOne.as_view(), name="one-series"),
    path("changes/", history.ChangeList.as_view(), name="changes"),
    path("changes/<int:pk>/", history.ChangeOne.as_view(), name="change"),
    path("alerts/", history.AlertList.as_view(), name="alerts"),
    path("machines/", views.MachineList.as_view(), name="machines"),
    path("schema/", docs.schema, name="schema"),
    path("docs/", docs.page, name="docs"),
    path("<path:rest>", views.Nothing.as_view(), name="nothing"),
]

urlpatterns = [path("api/v1/", include((_v1, "api")))]
