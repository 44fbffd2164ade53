from django.db import migrations, models
from django.db.models import F


def keep(apps, schema_editor):
    """A client may send a request again that it sent before the upgrade."""
    apps.get_model("api", "Once").objects.update(made=F("experiment_id"))


class Migration(migrations.Migration):

    dependencies = [
        ("api", "0001_once"),
    ]

    operations = [
        migrations.AddField(
            model_name="once",
            name="made",
            field=models.BigIntegerField(
                help_text="Key of what was made, of the kind that the address makes.", null=True
            ),
        ),
        migrations.RunPython(keep, migrations.RunPython.noop),
        migrations.RemoveField(model_name="once", name="experiment"),
    ]
