from django.urls import include, path

from webapp.traces import views

urlpatterns = [
    path(
        "traces/",
        include(
            (
                [
                    path("", views.trace_list, name="list"),
                    path("<slug:name>.csv", views.trace_csv, name="csv"),
                ],
                "traces",
            )
        ),
    ),
]
