"""The Dockerfile and the compose file name what exists: paths, flags, extras, the address of the health check."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from dissensus._core.extras import EXTRAS
from dissensus.cli import parser

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
LINES = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]


def instructions(name: str) -> list[str]:
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{name} ")]


@pytest.fixture(scope="module")
def service() -> dict:
    return yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["dissensus"]


def test_the_build_copies_what_is_there_and_not_ignored():
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {path for line in instructions("COPY") if "--from" not in line for path in line.split()[:-1]}
    assert copied == kept
    assert all((ROOT / path).exists() for path in copied)
    (named,) = re.findall(r"EXTRAS=([\w,]+)", DOCKERFILE)
    assert {"onnx", "serve"} <= set(named.split(",")) <= set(EXTRAS)
    for package in ("torch", "torchvision"):
        assert re.search(rf"^{package}==", (ROOT / "constraints.txt").read_text(), re.MULTILINE), package


def test_the_container_is_not_root_and_its_base_has_a_version():
    stages = instructions("FROM")
    assert all(stage.startswith("python:${PYTHON}") for stage in stages)
    assert re.fullmatch(r"PYTHON=3\.\d+-slim-\w+", instructions("ARG")[0])
    last = LINES[len(LINES) - LINES[::-1].index(f"FROM {stages[-1]}") :]
    users = [line for line in last if line.startswith("USER ")]
    assert users
    assert not re.search(r"\b(root|0)\b", users[-1])
    assert last.index(users[-1]) > max(i for i, line in enumerate(last) if line.startswith(("RUN ", "COPY ")))


def test_compose_mounts_the_run_read_only_and_leaves_nothing_else_to_write(service):
    (mount,) = service["volumes"]
    assert (mount["target"], mount["read_only"], service["read_only"]) == ("/srv/run", True, True)
    assert mount["source"].startswith("${RUN:?")
    assert [entry.split(":")[0] for entry in service["tmpfs"]] == ["/tmp"]
    written = dict(re.findall(r"(HOME|DISSENSUS_CACHE)=(\S+)", DOCKERFILE))
    assert all(fnmatch(path, "/tmp*") for path in written.values())
    assert len(written) == 2
    assert service["cap_drop"] == ["ALL"]
    assert service["ports"][0].startswith("127.0.0.1:"), "not open to other machines without being asked"
    assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_both_commands_are_of_dissensus_serve(service):
    image = yaml.safe_load(instructions("CMD")[0])
    assert yaml.safe_load(instructions("ENTRYPOINT")[0]) == ["dissensus"]
    for command in (image, service["command"]):
        name, values, _ = parser.parse(command)
        assert (name, values["run"], values["host"], values["port"]) == ("serve", "/srv/run", "0.0.0.0", 7860)
    assert instructions("EXPOSE") == ["7860"]


def test_a_stop_waits_for_the_requests_that_run(service):
    arguments = parser.parse(service["command"]).arguments
    grace = re.fullmatch(r"(\d+)s", service["stop_grace_period"])
    assert grace
    assert int(grace[1]) >= arguments["max_seconds"] + 5


def test_the_health_check_is_a_route_of_the_server():
    (path,) = re.findall(r"http://127\.0\.0\.1:7860(/[\w/]+)", instructions("HEALTHCHECK")[0])
    assert any(f'"{path}"' in file.read_text() for file in (ROOT / "src" / "dissensus" / "serve").glob("*.py"))
