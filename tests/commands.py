"""Checks a command without running it: the program exists, and takes these arguments."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

import click
from celery.bin.celery import celery as celery_program
from django.conf import settings
from django.core.management import get_commands, load_command_class
from gunicorn.config import Config

from bench_worker import __main__ as bench_worker

ROOT = Path(__file__).resolve().parents[1]


def check(command: Sequence[str]) -> None:
    """Raise where ``command`` (a program of the project, with its arguments) could not be run as it is written."""
    program, *args = command
    {"gunicorn": gunicorn, "celery": celery, "python": python, "make": make}[Path(program).name](args)


def gunicorn(args: Sequence[str]) -> None:
    [module] = Config().parser().parse_args(args).args
    assert f"{module}.application" == settings.WSGI_APPLICATION


def celery(args: Sequence[str]) -> None:
    app, command, *options = args
    assert hasattr(importlib.import_module(app.removeprefix("--app=")), "app")
    subcommand = celery_program.commands[command]
    subcommand.make_parser(click.Context(subcommand)).parse_args(options)


def python(args: Sequence[str]) -> None:
    if args[0] == "-m":
        module(*args[1:])
        return
    script, command, *options = args
    assert (ROOT / script).is_file()
    assert command in get_commands()
    load_command_class(get_commands()[command], command).create_parser(script, command).parse_args(options)


def module(name: str, *args: str) -> None:
    if name == "bench_worker":
        bench_worker.parser().parse_args(args)
    else:
        assert (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()


def make(args: Sequence[str]) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for arg in args:
        assert "=" in arg or arg in targets, arg
