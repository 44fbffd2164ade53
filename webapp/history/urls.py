from django.urls import include, path

from webapp.history import schedule_views

_schedules = [
    path("", schedule_views.schedule_list, name="list"),
    path("new/", schedule_views.new, name="new"),
    path("<int:pk>/", schedule_views.detail, name="detail"),
    path("<int:pk>/change/", schedule_views.change, name="change"),
    path("<int:pk>/switch/", schedule_views.switch, name="switch"),
    path("<int:pk>/run/", schedule_views.run_now, name="run"),
    path("<int:pk>/delete/", schedule_views.delete, name="delete"),
]

urlpatterns = [
    path("schedules/", include((_schedules, "schedules"))),
]
