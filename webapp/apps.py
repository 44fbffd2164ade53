from django.apps import AppConfig


class WebappConfig(AppConfig):
    """The house: commands and checks that concern all rooms."""

    name = "webapp"

    def ready(self) -> None:
        from webapp import celery, checks  # noqa: F401  (registers the task queue and the system checks)
