from django.apps import AppConfig


class TracesConfig(AppConfig):
    name = "webapp.traces"
    label = "traces"
    default_auto_field = "django.db.models.BigAutoField"
