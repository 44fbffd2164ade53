"""Requests as one column of bytes, and what a page shows of them. The rows that are there are converted."""

import hashlib

import numpy as np
from django.db import migrations, models

from webapp.traces.models import RECORD
from webapp.traces.shape import shape_of


def pack(apps, schema_editor):
    for trace in apps.get_model("traces", "Trace").objects.iterator(chunk_size=1):
        requests = np.zeros(trace.num_requests, RECORD)
        for name in RECORD.names:
            requests[name] = getattr(trace, name)
        trace.packed = requests.tobytes()
        trace.content_hash = hashlib.sha256(trace.packed).hexdigest()
        trace.span_s = trace.arrival_s[-1] - trace.arrival_s[0]
        trace.shape = shape_of(requests)
        trace.save()


class Migration(migrations.Migration):

    dependencies = [
        ('traces', '0001_initial'),
    ]

    operations = [
        migrations.AddField('trace', 'packed', models.BinaryField(default=b'', help_text='One `RECORD` a request.'), preserve_default=False),
        migrations.AddField('trace', 'span_s', models.FloatField(default=0, help_text='From the first arrival to the last.'), preserve_default=False),
        migrations.AddField('trace', 'shape', models.JSONField(default=dict, help_text='Histograms of lengths and arrivals; see `shape`.'), preserve_default=False),
        migrations.RunPython(pack),
    ]
