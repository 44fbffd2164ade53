from django.urls import include, path

from webapp.experiments import views

_pages = [
    path("", views.experiment_list, name="list"),
    path("new/", views.new, name="new"),
    path("new/plan/", views.plan, name="plan"),
    path("<int:pk>/", views.detail, name="detail"),
    path("<int:pk>/live/", views.live, name="live"),
    path("<int:pk>/cancel/", views.cancel, name="cancel"),
    path("<int:pk>/result/", views.result, name="result"),
    path("<int:pk>/experiment/", views.document, name="document"),
]

urlpatterns = [
    path("", views.home, name="home"),
    path("experiments/", include((_pages, "experiments"))),
]
