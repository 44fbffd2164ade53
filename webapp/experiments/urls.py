from django.urls import include, path

from webapp.experiments import acting, compare_views, export_views, views

_experiments = [
    path("", views.experiment_list, name="list"),
    path("new/", views.new, name="new"),
    path("new/plan/", views.plan, name="plan"),
    path("<int:pk>/", views.detail, name="detail"),
    path("<int:pk>/live/", views.live, name="live"),
    path("<int:pk>/runs/<int:position>/", views.run, name="run"),
    path("<int:pk>/result/", views.result, name="result"),
    path("<int:pk>/experiment/", views.document, name="document"),
    path("<int:pk>/tables/", export_views.tables, name="tables"),
    path("<int:pk>/trace/", export_views.trace, name="trace"),
    path("<int:pk>/cancel/", acting.cancel, name="cancel"),
    path("<int:pk>/rerun/", acting.rerun, name="rerun"),
    path("<int:pk>/next/<int:place>/", acting.try_next, name="next"),
    path("<int:pk>/describe/", acting.describe, name="describe"),
    path("<int:pk>/delete/", acting.delete, name="delete"),
    path("<int:pk>/restore/", acting.restore, name="restore"),
]
_machines = [
    path("", views.machine_list, name="list"),
    path("<int:pk>/", views.machine, name="detail"),
]

urlpatterns = [
    path("", views.home, name="home"),
    path("experiments/", include((_experiments, "experiments"))),
    path("compare/", compare_views.compare, name="compare"),
    path("compare/table/", compare_views.table, name="compare-table"),
    path("capacity/", views.capacity, name="capacity"),
    path("machines/", include((_machines, "machines"))),
]
