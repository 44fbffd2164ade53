from django.urls import include, path

from webapp.traces import views

_traces = [
    path("", views.trace_list, name="list"),
    path("requests/", views.new_trace, name="new-trace"),
    path("requests/<slug:name>/", views.trace, name="trace"),
    path("requests/<slug:name>/delete/", views.delete_trace, name="delete-trace"),
    path("<slug:name>.csv", views.trace_csv, name="csv"),
    path("recordings/", views.new_recording, name="new-recording"),
    path("recordings/<slug:name>/", views.recording, name="recording"),
    path("recordings/<slug:name>/delete/", views.delete_recording, name="delete-recording"),
    path("<slug:name>.npz", views.recording_npz, name="npz"),
]

urlpatterns = [path("traces/", include((_traces, "traces")))]
