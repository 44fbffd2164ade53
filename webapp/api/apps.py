from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "webapp.api"
    label = "api"

    def ready(self) -> None:
        from webapp.api import schema  # noqa: F401  # drf-spectacular finds extensions once they are imported
