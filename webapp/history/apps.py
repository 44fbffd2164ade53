from django.apps import AppConfig


class HistoryConfig(AppConfig):
    name = "webapp.history"
    label = "history"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from webapp.experiments import attendant
        from webapp.history import alerts, nights, reruns, retention, series

        attendant.DUTIES += [nights.queue_due, series.follow, reruns.look, alerts.look, retention.look]
