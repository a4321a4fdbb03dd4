"""The Dockerfile, compose.yaml and what the image installs hold what the pages say of them; read, not built."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafscale.cli.sql import parse_catalog
from kafscale.config import Durability, Settings, load, options
from kafscale.console_process import LIBRARIES
from kafscale.server.http.access import AdminToken
from kafscale.spark.pipeline.document import read_pipeline

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
PAGE = (REPOSITORY / "docs" / "how-to" / "run-with-minio.md").read_text()
BY_DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
LOCKS = ("image.txt", "spark.txt", "build.txt")
THREE = ("broker-1", "broker-2", "broker-3")
BUILT = ("kafscale", *THREE, "pipeline")


def _locked(name: str) -> dict[str, str]:
    """Give what a lock says of each package: the rest of its lines."""
    text = re.sub(r"\\\n\s*", " ", (REPOSITORY / "requirements" / name).read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {_canonical(line.partition("==")[0]): line.partition("==")[2] for line in lines}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip().lower())


def _declared(requirements: list[str], extras: Mapping[str, list[str]]) -> set[str]:
    """Return the names that are required, also by extras of the project itself."""
    found = set()
    for requirement in requirements:
        own = re.fullmatch(r"kafscale\[(.*)\]", requirement)
        if own:
            found |= _declared([each for extra in own[1].split(",") for each in extras[extra]], extras)
        else:
            found.add(_canonical(re.split(r"[<>=!~\[; ]", requirement)[0]))
    return found


def test_base_images_are_named_by_digest() -> None:
    [argument] = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert BY_DIGEST.fullmatch(argument)
    stages = set(re.findall(r" AS (\S+)$", DOCKERFILE, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - stages == {"${PYTHON_IMAGE}"}
    for service in BUILT:
        assert SERVICES[service]["build"]["args"]["PYTHON_IMAGE"] == f"${{PYTHON_IMAGE:-{argument}}}"
        assert SERVICES[service]["build"]["target"] in stages
    [catalog] = re.findall(r"\$\{CATALOG_IMAGE:-(.*)\}", SERVICES["catalog"]["image"])
    assert BY_DIGEST.fullmatch(catalog)
    for service, variable in (("prometheus", "PROMETHEUS_IMAGE"), ("grafana", "GRAFANA_IMAGE")):
        [image] = re.findall(rf"\$\{{{variable}:-(.*)\}}", SERVICES[service]["image"])
        assert BY_DIGEST.fullmatch(image)
    [minio] = re.findall(r"\$\{MINIO_IMAGE:-(.*)\}", SERVICES["minio"]["image"])
    assert BY_DIGEST.fullmatch(minio)
    tag = minio.partition(":")[2].partition("@")[0]
    assert tag in PAGE, "the page does not say which MinIO it is"


@pytest.mark.parametrize("service", ["kafscale", *THREE])
def test_the_admin_servers_ask_for_a_token(service: str) -> None:
    """In the image they listen on all addresses; /flush was anybody's."""
    assert re.search(r"KAFSCALE_ADMIN_LISTEN=0\.0\.0\.0:", DOCKERFILE)
    assert SERVICES[service]["secrets"] == ["admin-token"]
    assert SERVICES[service]["environment"]["KAFSCALE_ADMIN_TOKEN_FILE"] == "/run/secrets/admin-token"
    [file] = re.findall(r"\$\{ADMIN_TOKEN_FILE:-(.*)\}", COMPOSE["secrets"]["admin-token"]["file"])
    assert AdminToken.open(REPOSITORY / file)
    assert f"`{file}`" in PAGE


@pytest.mark.parametrize("service", BUILT)
def test_images_run_as_an_unprivileged_user(service: str) -> None:
    [runtime] = [
        each for each in DOCKERFILE.split("\nFROM ") if f" AS {SERVICES[service]['build']['target']}\n" in each
    ]
    [user] = re.findall(r"^USER (\S+)$", runtime, re.MULTILINE)
    assert int(user.partition(":")[0]) >= 1000
    assert runtime.index("USER ") < runtime.index("ENTRYPOINT")
    assert "user" not in SERVICES[service]


def test_the_default_docker_target_is_the_broker() -> None:
    *_, last = re.findall(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE)
    assert last == SERVICES["kafscale"]["build"]["target"] == "broker"


def test_compose_profiles_add_services_to_the_default_ones(monkeypatch) -> None:
    assert {name for name, each in SERVICES.items() if "profiles" not in each} == {"minio", "kafscale"}
    assert {name for name, each in SERVICES.items() if each.get("profiles") == ["spark"]} == {"catalog", "pipeline"}
    assert {name for name, each in SERVICES.items() if each.get("profiles") == ["three"]} == {*THREE}
    assert {name for name, each in SERVICES.items() if each.get("profiles") == ["observe"]} == {"prometheus", "grafana"}
    environ = SERVICES["pipeline"]["environment"]
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    pipeline = read_pipeline(REPOSITORY / "deploy" / "compose" / "pipeline.yaml")
    catalog = SERVICES["catalog"]["environment"]
    assert pipeline.source.store == "s3://kafscale"
    assert catalog["CATALOG_WAREHOUSE"].startswith("s3://kafscale/")
    assert pipeline.catalog.s3_endpoint == catalog["CATALOG_S3_ENDPOINT"] == environ["KAFSCALE_S3_ENDPOINT"]
    assert parse_catalog(environ["KAFSCALE_SQL_CATALOG"]) == pipeline.catalog
    assert any(volume.endswith(":/data") for volume in SERVICES["pipeline"]["volumes"])
    assert pipeline.checkpoints.startswith("/data/")
    (port,) = SERVICES["pipeline"]["ports"]
    assert port.endswith(str(pipeline.metrics).rpartition(":")[2])


def test_three_brokers_share_a_bucket_that_the_one_does_not_have() -> None:
    loaded = [_settings(service) for service in THREE]
    assert [each.broker_id for each in loaded] == [1, 2, 3]
    assert len({(each.store, each.namespace) for each in loaded}) == 1
    assert str(loaded[0].store) not in str(SERVICES["kafscale"]["command"]).replace("'", " ").split("=")
    for service, settings in zip(THREE, loaded, strict=True):
        assert settings.several_brokers
        assert settings.durability is Durability.S3_WAL
        assert [listener.name for listener in settings.listeners] == ["INTERNAL", "HOST"]
        assert settings.inter_broker_listener == "INTERNAL"
        inside, outside = settings.advertised_listeners
        assert (inside.host, inside.port) == (service, settings.listeners[0].port)
        assert SERVICES[service]["ports"] == [f"{outside.address}:{settings.listeners[1].port}"]
        assert SERVICES[service]["volumes"] == [f"{service}-data:/data"]
        assert f"{service}-data" in COMPOSE["volumes"]


def test_the_profile_observe_has_all_dashboards_and_scrapes_every_service_with_metrics() -> None:
    files = {REPOSITORY / each["file"] for each in COMPOSE["configs"].values()}
    assert files == {
        *(REPOSITORY / "deploy").glob("prometheus/*.yaml"),
        *(REPOSITORY / "deploy").glob("grafana/**/*.*"),
    }
    given = [each["source"] for service in ("prometheus", "grafana") for each in SERVICES[service]["configs"]]
    assert sorted(given) == sorted(COMPOSE["configs"])
    (provider,) = yaml.safe_load((REPOSITORY / COMPOSE["configs"]["dashboards"]["file"]).read_text())["providers"]
    targets = [each["target"] for each in SERVICES["grafana"]["configs"] if each["target"].endswith(".json")]
    assert {str(Path(target).parent) for target in targets} == {provider["options"]["path"]}
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in targets
    config = yaml.safe_load((REPOSITORY / COMPOSE["configs"]["prometheus"]["file"]).read_text())
    scraped = {each["job_name"]: each["dns_sd_configs"][0] for each in config["scrape_configs"]}
    assert [*scraped["kafscale"]["names"], *scraped["kafscale-pipeline"]["names"]] == list(BUILT)
    assert str(scraped["kafscale"]["port"]) == re.findall(r"KAFSCALE_ADMIN_LISTEN=0\.0\.0\.0:(\d+)", DOCKERFILE)[0]
    (port,) = SERVICES["pipeline"]["ports"]
    assert port.endswith(f":{scraped['kafscale-pipeline']['port']}")


def _settings(service: str) -> Settings:
    """Return what a broker makes of its command and its variables, with what Compose has where nothing is set."""
    found = SERVICES[service]
    words = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in found["command"]]
    flags: dict[str, Any] = {}
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        option = next(each for each in options() if each.flag == f"--{name}")
        if option.is_repeatable:
            flags[option.attribute] = (*flags.get(option.attribute, ()), value)
        else:
            flags[option.attribute] = value
    ports = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", port) for port in found["ports"]]
    found["ports"] = ports
    return load(flags, found["environment"], None).settings


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
    assert len(commands) == 7
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


def test_the_lock_files_have_all_declared_dependencies() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    needed = _declared(project["project"]["dependencies"], extras)
    assert not needed - _locked("image.txt").keys(), "run `make lock`"
    needed |= _declared(extras["iceberg"], extras)
    assert {"pyspark", "fastavro", "duckdb"} <= needed
    assert not needed - _locked("spark.txt").keys(), "run `make lock`"
    assert _declared(project["build-system"]["requires"], {}) <= _locked("build.txt").keys(), "run `make lock`"


def test_dockerignore_admits_exactly_the_copied_files() -> None:
    sent = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert {name for line in copied for name in line.split()} == sent


def test_the_image_alone_serves_clients_of_its_host() -> None:
    """`docker run -p 9092:9092`: a client on the host is told an address that it can reach."""
    stage = DOCKERFILE.partition("AS broker\n")[2].partition("\nFROM ")[0]
    environment = dict(re.findall(r"(KAFSCALE_\w+)=(\S+)", stage))
    settings = load({}, environment, None).settings
    assert [str(listener.address) for listener in settings.listeners] == ["0.0.0.0:9092"]
    assert [str(listener) for listener in settings.advertised_listeners] == ["PLAINTEXT=127.0.0.1:9092"]


def test_the_image_has_what_the_console_needs() -> None:
    locked = re.findall(r"^([\w-]+)==", (REPOSITORY / "requirements" / "image.txt").read_text(), re.MULTILINE)
    assert {name.replace("_", "-") for name in LIBRARIES} <= set(locked)
