"""The API. Its views let programs in themselves, by token; the schema and its page are for members."""

from django.urls import include, path

from webapp.api import docs, views

_v1 = [
    path("experiments/", views.ExperimentList.as_view(), name="experiments"),
    path("experiments/<int:pk>/", views.ExperimentOne.as_view(), name="experiment"),
    path("experiments/<int:pk>/result/", views.ExperimentResult.as_view(), name="result"),
    path("experiments/<int:pk>/cancel/", views.ExperimentCancel.as_view(), name="cancel"),
    path("experiments/<int:pk>/rerun/", views.ExperimentRerun.as_view(), name="rerun"),
    path("experiments/<int:pk>/restore/", views.ExperimentRestore.as_view(), name="restore"),
    path("runs/", views.RunList.as_view(), name="runs"),
    path("machines/", views.MachineList.as_view(), name="machines"),
    path("schema/", docs.schema, name="schema"),
    path("docs/", docs.page, name="docs"),
    path("<path:rest>", views.Nothing.as_view(), name="nothing"),
]

urlpatterns = [path("api/v1/", include((_v1, "api")))]
