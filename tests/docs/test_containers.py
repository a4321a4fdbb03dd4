"""The Dockerfile, compose.yaml and what the image installs hold what the pages say of them; read, not built."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
PAGE = (REPOSITORY / "docs" / "how-to" / "run-with-minio.md").read_text()
BY_DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
LOCKS = ("image.txt", "build.txt")


def _locked(name: str) -> dict[str, str]:
    """Give what a lock says of each package: the rest of its lines."""
    text = re.sub(r"\\\n\s*", " ", (REPOSITORY / "requirements" / name).read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {_canonical(line.partition("==")[0]): line.partition("==")[2] for line in lines}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip().lower())


def _declared(requirements: list[str]) -> set[str]:
    return {_canonical(re.split(r"[<>=!~\[; ]", each)[0]) for each in requirements}


def test_base_images_are_named_by_digest() -> None:
    [argument] = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert BY_DIGEST.fullmatch(argument)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    built_of = SERVICES["kafscale"]["build"]["args"]["PYTHON_IMAGE"]
    assert built_of == f"${{PYTHON_IMAGE:-{argument}}}"
    [minio] = re.findall(r"\$\{MINIO_IMAGE:-(.*)\}", SERVICES["minio"]["image"])
    assert BY_DIGEST.fullmatch(minio)
    tag = minio.partition(":")[2].partition("@")[0]
    assert tag in PAGE, "the page does not say which MinIO it is"


def test_the_broker_is_no_root() -> None:
    *_, runtime = DOCKERFILE.split("\nFROM ")
    [user] = re.findall(r"^USER (\S+)$", runtime, re.MULTILINE)
    assert int(user.partition(":")[0]) >= 1000
    assert runtime.index("USER ") < runtime.index("ENTRYPOINT")
    assert "user" not in SERVICES["kafscale"]


@pytest.mark.parametrize("service", SERVICES)
def test_containers_are_confined(service: str) -> None:
    found = SERVICES[service]
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert not {"cap_add", "privileged", "devices", "network_mode", "pid"} & found.keys()
    assert all(port.startswith("127.0.0.1:") for port in found["ports"])
    assert not any(volume.startswith(("/", ".")) for volume in found["volumes"]), "a directory of the host"


def test_the_image_installs_by_hash_and_by_nothing_else() -> None:
    commands = re.findall(r"pip (?:install|wheel)[^&\n]*", DOCKERFILE.replace("\\\n", " "))
    assert len(commands) == 4
    for command in commands:
        assert (
            "--require-hashes" in command
            or {"--no-index", "--no-deps"} <= {*command.split()}
            or ({"--no-deps", "--no-build-isolation"} <= {*command.split()})
        )


@pytest.mark.parametrize("name", LOCKS)
def test_locks_have_a_version_and_hashes_of_each_package_and_no_address(name: str) -> None:
    for package, rest in _locked(name).items():
        version, *hashes = rest.split()
        assert re.fullmatch(r"[0-9][\w.!+]*", version), package
        assert hashes, package
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), package
    assert "://" not in (REPOSITORY / "requirements" / name).read_text()


def test_the_lock_has_what_is_depended_on() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    missing = _declared(project["project"]["dependencies"]) - _locked("image.txt").keys()
    assert not missing, "run `make lock`"
    assert _declared(project["build-system"]["requires"]) <= _locked("build.txt").keys(), "run `make lock`"


def test_what_is_copied_is_sent_to_the_engine() -> None:
    sent = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert {name for line in copied for name in line.split()} == sent
