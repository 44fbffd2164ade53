import json
from io import StringIO

import pytest
from django.core.management import call_command

from webapp.accounts.models import User
from webapp.experiments.models import Experiment

pytestmark = pytest.mark.django_db


def prepare():
    out = StringIO()
    call_command("prepare", stdout=out)
    return json.loads(out.getvalue())


def test_an_empty_database_gets_its_first_user_a_link_and_an_experiment(client):
    facts = prepare()
    admin = User.objects.get()
    assert facts["user"] == admin.username == "admin"
    assert admin.is_admin
    assert not admin.has_usable_password()
    experiment = Experiment.objects.get()
    assert (facts["queued"], experiment.author) == (experiment.title, admin)
    assert client.get(facts["link"]).url == "/"


def test_a_later_start_only_gives_a_new_link():
    first = prepare()
    second = prepare()
    assert second["queued"] is None
    assert second["link"] != first["link"]
    assert User.objects.count() == Experiment.objects.count() == 1


def test_an_administrator_of_another_name_is_not_joined_by_admin():
    User.objects.create_superuser("olga")
    assert prepare()["user"] == "olga"
    assert User.objects.count() == 1


@pytest.mark.parametrize("name", ["olga", "admin"])
def test_where_no_administrator_is_left_admin_is_one(client, name):
    User.objects.create_superuser(name, is_active=False)
    facts = prepare()
    assert facts["user"] == "admin"
    assert client.get(facts["link"]).status_code == 302
