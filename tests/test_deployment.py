"""The team deployment on paper: everything that its files name exists in the project, and nothing is left open."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import commands, compose, requirements, variables

ROOT = compose.ROOT
FILES = [compose.FILE, ROOT / "docker" / "open-servers.yml", *compose.DOCKERFILES]
#: What must come from outside.
REQUIRED = ("ALLOWED_HOSTS", "POSTGRES_PASSWORD", "SECRET_KEY", "VALKEY_PASSWORD")
SECRETS = {name: f"{name.lower()}-of-a-test" for name in REQUIRED} | {"ALLOWED_HOSTS": "moescope.example.org"}
SERVICES = compose.load(SECRETS)["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)
THEIRS = {"postgres": "postgres", "valkey": "valkey"}
LONG_RUNNING = sorted(SERVICES.keys() - {"migrate"})


def dockerfile(service: str) -> Path:
    return ROOT / SERVICES[service]["build"]["dockerfile"]


def programs(command: list[str]) -> list[list[str]]:
    """The programs that a service's command runs, those inside ``sh -c`` too."""
    if command[:2] != ["sh", "-c"]:
        return [command]
    return [shlex.split(part.strip().removeprefix("exec ")) for part in command[2].split("&&")]


def test_the_services_of_the_team_deployment():
    assert SERVICES.keys() == {"web", "worker", "worker-cuda", "beat", "migrate", "postgres", "valkey"}


class TestServices:
    @pytest.mark.parametrize("name", SERVICES)
    def test_its_image_is_pinned(self, name):
        image, _, tag = SERVICES[name]["image"].rpartition(":")
        assert image
        assert re.match(r"\d+\.\d+", tag)

    @pytest.mark.parametrize("name", OURS)
    def test_an_image_of_ours_has_our_version(self, name):
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        assert SERVICES[name]["image"].endswith(f":{version}")

    @pytest.mark.parametrize("name", OURS)
    def test_it_is_built_from_a_file_that_exists_and_nobody_pulls_a_stranger_of_its_name(self, name):
        assert dockerfile(name).is_file()
        assert SERVICES[name]["build"]["context"] == "."
        assert SERVICES[name]["pull_policy"] == "build"
        declared = {text.partition("=")[0] for text in compose.arguments(dockerfile(name), "ARG")}
        assert SERVICES[name]["build"].get("args", {}).keys() <= declared

    def test_web_beat_and_migrations_share_an_image(self):
        assert len({SERVICES[name]["image"] for name in ("web", "beat", "migrate")}) == 1

    @pytest.mark.parametrize("name", SERVICES)
    def test_it_does_not_run_as_root(self, name):
        user = SERVICES[name].get("user") or compose.arguments(dockerfile(name), "USER")[-1]
        assert user.partition(":")[0] not in ("", "0", "root")
        assert "no-new-privileges:true" in SERVICES[name]["security_opt"]
        assert "privileged" not in SERVICES[name]

    @pytest.mark.parametrize("name", LONG_RUNNING)
    def test_it_is_watched_and_started_again(self, name):
        assert SERVICES[name]["restart"] == "unless-stopped"
        assert SERVICES[name]["healthcheck"]["test"]
        assert SERVICES[name]["logging"]["options"]["max-size"]

    def test_migrations_run_once_before_everything_that_reads_the_database(self):
        assert SERVICES["migrate"]["restart"] == "no"
        for name in ("web", "beat", "worker", "worker-cuda"):
            assert SERVICES[name]["depends_on"] == {
                "migrate": {"condition": "service_completed_successfully"},
                "postgres": {"condition": "service_healthy"},
                "valkey": {"condition": "service_healthy"},
            }

    def test_every_volume_is_named(self):
        named = compose.read()["volumes"].keys()
        mounted = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
        assert mounted == named == {"postgres", "uploads"}

    def test_an_upload_lies_on_disk_and_not_in_memory(self):
        web = SERVICES["web"]
        assert f"uploads:{web['environment']['TMPDIR']}" in web["volumes"]
        assert web["environment"]["TMPDIR"] not in web["tmpfs"]

    @pytest.mark.parametrize("name", ["worker", "worker-cuda"])
    def test_a_worker_has_what_torch_needs(self, name):
        worker = SERVICES[name]
        assert worker["shm_size"] == "8gb"
        assert worker["ulimits"]["memlock"] == -1
        assert worker["init"] is True  # reaps what a killed measurement leaves
        assert "mem_limit" not in worker  # the measurement asks for the machine's memory and is told what there is

    def test_the_cuda_worker_is_optional_and_asks_for_the_gpus(self):
        worker = SERVICES["worker-cuda"]
        assert worker["profiles"] == ["cuda"]
        [device] = worker["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])

    def test_each_worker_has_a_pool_and_a_name_of_its_own(self):
        cpu, cuda = SERVICES["worker"], SERVICES["worker-cuda"]
        assert cpu["environment"]["MOESCOPE_POOL"] == SERVICES["web"]["environment"]["MOESCOPE_POOL"] == "cpu"
        assert cuda["environment"]["MOESCOPE_POOL"] == "cuda"
        assert cpu["hostname"] != cuda["hostname"]
        for worker in (cpu, cuda):
            assert f"--hostname={worker['environment']['MOESCOPE_POOL']}@%h" in worker["command"]


class TestCommands:
    @pytest.mark.parametrize("name", OURS)
    def test_every_program_and_option_exists(self, name):
        for program in programs(SERVICES[name]["command"]):
            commands.check(program)

    @pytest.mark.parametrize("name", OURS)
    def test_it_has_what_its_programs_import(self, name):
        """Where the commands of a service are started, the packages of its list are installed."""
        installed = requirements.distributions(
            *re.findall(r"--requirement (\S+)", "\n".join(compose.arguments(dockerfile(name), "RUN")))
        )
        for program in programs(SERVICES[name]["command"]):
            assert program[0] == "python" or program[0] in installed

    def test_a_misspelt_option_would_be_found(self):
        with pytest.raises(SystemExit):
            commands.check(["gunicorn", "webapp.wsgi", "--treads=8"])
        with pytest.raises(Exception, match="No such option"):
            commands.check(["celery", "--app=webapp.celery", "worker", "--concurency=1"])
        with pytest.raises(AssertionError):
            commands.check(["python", "manage.py", "migrat"])

    def test_the_servers_health_checks_name_their_own_database(self):
        asked = SERVICES["postgres"]["healthcheck"]["test"]
        made = SERVICES["postgres"]["environment"]
        assert {f"--username={made['POSTGRES_USER']}", f"--dbname={made['POSTGRES_DB']}"} <= set(asked)

    def test_the_worker_is_the_one_that_the_embedded_product_runs(self):
        """Same options, whichever way the product is run."""
        text = (ROOT / "webapp" / "supervisor.py").read_text()
        for option in SERVICES["worker"]["command"][2:]:
            assert option.startswith(("--hostname", "--app")) or f'"{option}"' in text


class TestVariables:
    @pytest.mark.parametrize("name", OURS)
    def test_every_variable_of_ours_is_read_by_the_settings(self, name):
        given = SERVICES[name]["environment"].keys() - {"PORT", "TMPDIR"}  # gunicorn's own, and Python's
        assert given <= variables.of_settings().keys()

    @pytest.mark.parametrize("file", compose.DOCKERFILES, ids=lambda file: file.name)
    def test_every_variable_of_an_image_is_known(self, file):
        known = variables.of_settings().keys() | variables.read_elsewhere()
        others = {"PATH", "PYTHONUNBUFFERED", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
        given = {name for text in compose.arguments(file, "ENV") for name in re.findall(r"(\w+)=", text)}
        assert given <= known | others

    @pytest.mark.parametrize("name", ["web", "migrate", "beat", "worker", "worker-cuda"])
    def test_the_settings_take_the_values(self, name):
        given = SERVICES[name]["environment"]
        names = ["DATABASE_URL", "BROKER_URL", "MOESCOPE_POOL"]
        code = f"import json; from webapp import settings; print(json.dumps([getattr(settings, n) for n in {names}]))"
        said = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=variables.without_ours() | given,
            capture_output=True,
            check=True,
        )
        assert json.loads(said.stdout) == [given[name] for name in names]

    def test_ports_and_hosts_lead_to_the_services(self):
        web = SERVICES["web"]
        assert web["environment"]["DATABASE_URL"].endswith("@postgres:5432/moescope")
        assert web["environment"]["BROKER_URL"].endswith("@valkey:6379/0")
        assert [port.rpartition(":")[2] for port in web["ports"]] == [web["environment"]["PORT"]]
        opened = compose.load({"SERVERS_BIND": "10.0.0.5"}, FILES[1])["services"]
        assert opened == {
            "postgres": {"ports": ["10.0.0.5:5432:5432"]}, "valkey": {"ports": ["10.0.0.5:6379:6379"]},
        }  # fmt: skip

    def test_pages_are_offered_to_this_machine_only_unless_someone_says_otherwise(self):
        assert SERVICES["web"]["ports"] == ["127.0.0.1:8000:8000"]
        assert SERVICES["web"]["environment"]["MOESCOPE_HTTPS"] == "true"
        assert all("ports" not in SERVICES[name] for name in THEIRS)

    def test_servers_elsewhere_take_the_place_of_ours(self):
        elsewhere = {"DATABASE_URL": "postgresql://u:p@db.example/m?sslmode=require", "BROKER_URL": "amqps://u:p@mq/"}
        services = compose.load(SECRETS | elsewhere)["services"]
        for name in ("web", "migrate", "beat", "worker", "worker-cuda"):
            assert services[name]["environment"].items() >= elsewhere.items()


class TestSecrets:
    @pytest.mark.parametrize("name", REQUIRED)
    def test_without_it_nothing_starts(self, name):
        with pytest.raises(compose.Unset, match=rf"^{name}: set it to "):
            compose.load({key: value for key, value in SECRETS.items() if key != name})

    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
    def test_none_is_written_in_a_file(self, file):
        """After a password, a key or a token there is a reference, or nothing."""
        text = re.sub(r"#.*", "", file.read_text())
        for value in re.findall(r"(?i)(?:password|secret|token|_key)\w*[\"']?\s*[:=]\s*[\"']?([^\s\"']+)", text):
            assert value.startswith(("$", "?"))
        for credentials in re.findall(r"://([^/\s]*)@", text):
            assert re.fullmatch(r"(moescope)?:\$\{\w+:\?[^}]+\}", credentials)

    def test_only_the_pages_get_the_key_that_signs_sessions(self):
        assert sorted(n for n in OURS if "SECRET_KEY" in SERVICES[n]["environment"]) == ["migrate", "web"]

    @pytest.mark.parametrize("file", [".gitignore", ".dockerignore"])
    def test_the_file_that_may_hold_them_is_never_taken_along(self, file):
        patterns = (ROOT / file).read_text().split()
        assert {".env", "*"} & set(patterns)
        assert "!.env" not in patterns
