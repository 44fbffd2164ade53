"""Which entries of the library an experiment names. Before this only traces could be named."""

import django.db.models.deletion
from django.db import migrations, models


def link(apps, schema_editor):
    rows = apps.get_model("experiments", "Experiment").objects
    for trace in apps.get_model("traces", "Trace").objects.only("name"):
        rows.filter(document__base__workload__trace=trace.name).update(trace=trace)


class Migration(migrations.Migration):

    dependencies = [
        ('experiments', '0004_kernels'),
        ('traces', '0003_library'),
    ]

    operations = [
        migrations.AddField(
            model_name='experiment',
            name='recordings',
            field=models.ManyToManyField(blank=True, related_name='experiments', to='traces.recording'),
        ),
        migrations.AddField(
            model_name='experiment',
            name='trace',
            field=models.ForeignKey(blank=True, help_text='The imported trace that it reads; null for a built-in one.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='experiments', to='traces.trace'),
        ),
        migrations.RunPython(link),
    ]
