"""What the README and the docs name exists: commands, files, links, settings."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests import commands, compose, variables, words

ROOT = words.ROOT
OPERATIONS = ROOT / "docs" / "operations.md"
#: Programs that come with every Unix, or that the text asks for.
ELSEWHERE = {"curl", "echo", "export", "git", "mv", "openssl", "tar", "umask", "apt-get"}
COMMANDS = [(file, line) for file in words.FILES for line in words.console(file.read_text())]
#: Files that a reader makes.
MADE = {".env", "docker-compose.override.yml", "result.json", "requests.csv", "state.json"}


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize(
    ("file", "line"), COMMANDS, ids=lambda value: name(value) if isinstance(value, Path) else value
)
def test_a_command_can_be_typed(file, line):
    if re.match(r"\w+=", line):  # a variable of the shell
        return
    program, *args = [word for word in shlex.split(line) if word not in (">>", ".env")]
    if program == "docker":
        docker(args)
    elif program.startswith("$PG/"):
        assert program.removeprefix("$PG/") in ("pg_dump", "pg_restore")
    elif program not in ELSEWHERE:
        commands.check([program, *args])


def docker(args: list[str]) -> None:
    """A call of Compose names services of ours, and what runs inside them exists."""
    assert args[0] == "compose"
    services = compose.read()["services"].keys()
    options = iter(args[1:])
    words_left = []
    for word in options:
        if word in ("--file", "--profile"):
            value = next(options)
            assert (ROOT / value).is_file() if word == "--file" else value in PROFILES
        elif not (word.startswith("-") and not words_left[2:]):
            words_left.append(word)
    command, *rest = words_left
    assert command in ("build", "exec", "ps", "run", "stop", "up")
    if command == "exec" and rest[1:2] == ["python"]:
        commands.check(rest[1:])
    assert set(rest[:1] if command in ("exec", "run") else rest) <= services


PROFILES = {"cuda"}


def test_every_profile_that_is_named_exists():
    assert {
        profile for service in compose.read()["services"].values() for profile in service.get("profiles", [])
    } == PROFILES


@pytest.mark.parametrize("file", words.FILES, ids=name)
def test_a_command_in_a_sentence_exists(file):
    for code in re.findall(
        r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)
    ):
        if re.match(r"make \w", code):
            commands.make(shlex.split(code)[1:])
        elif found := re.match(r"(?:python )?manage\.py (\w+)", code):
            assert found[1] in commands.get_commands(), code
        elif found := re.match(r"python -m bench_worker (\w+(?: \| \w+)*)", code):
            for one in found[1].split(" | "):
                assert one in bench_worker_commands(), code
        elif code.startswith("docker compose "):
            docker(shlex.split(code)[1:])


def bench_worker_commands() -> set[str]:
    [subcommands] = [action.choices for action in commands.bench_worker.parser()._actions if action.choices]
    return set(subcommands)


@pytest.mark.parametrize("file", words.FILES, ids=name)
def test_a_file_that_is_named_exists(file):
    text = file.read_text()
    roots = "|".join(("bench_worker", "docker", "docs", "requirements", "samples", "tests", "tools", "webapp"))
    named = re.findall(rf"(?<![\w/])((?:{roots})/[\w./-]*\w|docker-compose[\w.]*\.yml|requirements\.txt)", text)
    for path in set(named) - MADE:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("file", words.FILES, ids=name)
def test_a_link_leads_somewhere(file):
    for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
        path, _, anchor = target.partition("#")
        assert not path.startswith("http"), target
        linked = file.parent / path if path else file
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", words.FILES, ids=name)
def test_an_example_in_yaml_can_be_read(file):
    for block in words.blocks(file.read_text()):
        if block.language == "yaml":
            for service in yaml.safe_load(block.text)["services"].values():
                if "extends" in service:
                    assert service["extends"]["service"] in compose.read(ROOT / service["extends"]["file"])["services"]


def table(columns: int) -> dict[str, list[str]]:
    """The table of variables with so many columns: by variable, the other cells without backticks."""
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", words.section(OPERATIONS, "## Settings"), re.MULTILINE)
    cells = {variable: rest.replace("`", "").split(" | ") for variable, rest in rows}
    return {variable: rest for variable, rest in cells.items() if len(rest) == columns - 1}


def test_the_settings_table_is_that_of_the_settings():
    read = variables.of_settings()
    documented = table(columns=4)
    assert documented.keys() == read.keys() | variables.read_elsewhere()
    for variable, (kind, default, _) in documented.items():
        if variable not in read:
            continue
        assert kind == read[variable].kind, variable
        try:
            value = ast.literal_eval(read[variable].default)
        except ValueError:
            continue  # made from something else; the words say from what
        if value not in ("", []):
            assert default == str(value).lower(), variable


def test_the_table_of_the_compose_file_is_that_of_its_variables():
    named = set().union(
        *(compose.names_in(file.read_text()) for file in (compose.FILE, ROOT / "docker" / "open-servers.yml"))
    )
    documented = table(columns=3)
    assert documented.keys() == named - variables.of_settings().keys() - {"MOESCOPE_COMMIT"}
    defaults = dict(re.findall(r"\$\{(\w+):-([^${}]*)\}", compose.FILE.read_text()))
    for variable, (default, _) in documented.items():
        assert default == (defaults.get(variable, "must be set") or "none"), variable


def test_the_decisions_are_numbered_without_a_gap():
    numbers = [int(file.name[:4]) for file in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
    for number, file in zip(numbers, sorted((ROOT / "docs" / "adr").glob("*.md")), strict=True):
        assert file.read_text().startswith(f"# {number}. ")
