"""The chart's manifests: valid for Helm and Kubernetes, confined, and made of options that the broker has.

The variables of each pod are read as the broker reads them, so that chart and broker cannot drift apart.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from kafscale import __version__
from kafscale.cli.console import command as console_command
from kafscale.config import BOOTSTRAP_VARIABLE, COMMAND_CONFIG_VARIABLE, Durability, Settings, load, options
from kafscale.errors import ConfigError
from kafscale.login.properties import parse_properties
from tests.helm.charts import (
    CHART,
    HELM_MISSING,
    NAMESPACE,
    VALUES,
    Manifest,
    helm,
    helm_program,
    manifests,
    of_kind,
    pod_specs,
    rendered,
    template,
)
from tests.helm.pods import DOCKERFILE, Pod, image_environ, pods_of

pytestmark = [
    pytest.mark.helm,
    pytest.mark.timeout(1200),  # the first test may wait for a Go build
    pytest.mark.skipif(helm_program() is None, reason=HELM_MISSING),
]

BUILD_TIMEOUT_SECONDS = 1100.0
MIB = 1 << 20
BEYOND_BUDGETS_BYTES = 200 * MIB  # what bench.memory allows beside the options' budgets
KILLED_AFTER_SECONDS = 15  # from the end of --shutdown-timeout; tests/helm/test_lifecycle.py shows that it is enough
SECRETS = {"minio-keys": {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}}
DOMAIN = f"kafscale-brokers.{NAMESPACE}.svc.cluster.local"
each_values = pytest.mark.parametrize("name", VALUES)


def pods(*settings: str, values: Path | None = None) -> list[Pod]:
    return pods_of(manifests(*settings, values=values), Path("/nowhere"), secrets=SECRETS)


def broker_settings(pod: Pod) -> Settings:
    """Return what the broker makes of the pod's variables. Raises ConfigError for an option that it does not have."""
    return load({}, {**image_environ(), **pod.environ()}).settings


@cache
def strict_decoder() -> Path:
    """Build the program that decodes manifests by Kubernetes' types."""
    directory = TemporaryDirectory(prefix="kafscale-strict-")
    _kept.append(directory)
    program = Path(directory.name) / "strict"
    command = ["go", "build", "-o", str(program), "."]
    subprocess.run(command, cwd=Path(__file__).parent / "strict", check=True, timeout=BUILD_TIMEOUT_SECONDS)
    return program


_kept: list[TemporaryDirectory[str]] = []


def decoded(text: str) -> list[dict[str, Any]]:
    done = subprocess.run([strict_decoder()], input=text, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="Go is not on the PATH")


@each_values
def test_helm_finds_no_fault(name: str) -> None:
    done = helm("lint", "--strict", str(CHART), "--values", str(VALUES[name]))
    assert done.returncode == 0, done.stdout


@needs_go
@each_values
def test_manifests_decode_strictly_and_pods_are_restricted(name: str) -> None:
    found = decoded(rendered(values=VALUES[name]))
    assert [verdict for verdict in found if verdict.get("error") or verdict.get("forbidden")] == []
    assert [manifest["kind"] for manifest in found] == [manifest["kind"] for manifest in manifests(values=VALUES[name])]


@needs_go
@pytest.mark.parametrize(
    ("written", "broken", "wrong"),
    [
        ("enableServiceLinks:", "enableServiceLink:", 'unknown field "spec.template.spec.enableServiceLink"'),
        ("replicas: 5", "replicas: five", "cannot unmarshal string"),
        ("maxUnavailable: 2", "maxUnavailable: 2\n  maxUnavailable: 3", "already set"),
        ("    - port: admin", "    - ports: admin", 'unknown field "spec.endpoints[0].ports"'),
        ("readOnlyRootFilesystem: true", "privileged: true", "privileged"),
        ("runAsNonRoot: true", "runAsNonRoot: false", "runAsNonRoot != true"),
    ],
)
def test_a_broken_manifest_is_found(written: str, broken: str, wrong: str) -> None:
    text = rendered(values=VALUES["everything"])
    assert written in text
    assert wrong in json.dumps(decoded(text.replace(written, broken)), ensure_ascii=False).replace('\\"', '"')


@each_values
def test_each_option_of_the_chart_is_one_of_the_broker(name: str) -> None:
    values = yaml.safe_load(VALUES[name].read_text())
    found = pods(values=VALUES[name])
    assert len(found) == values.get("replicaCount", 3)
    for pod in found:
        settings = broker_settings(pod)
        assert settings.broker_id == pod.index
        assert settings.rack == pod.zone
        assert str(settings.store) == values["store"]["url"]
        known = {option.variable for option in options()} | {BOOTSTRAP_VARIABLE, COMMAND_CONFIG_VARIABLE}
        given = {variable for variable in pod.environ() if variable.startswith("KAFSCALE_")}
        assert given <= known


def test_an_option_that_the_broker_does_not_have_is_found() -> None:
    found = pods("store.url=s3://a", "config.flush-intervall=5s")
    with pytest.raises(ConfigError, match="KAFSCALE_FLUSH_INTERVALL"):
        broker_settings(found[0])


def test_options_that_other_values_set_are_refused_as_config() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    managed = set(schema["properties"]["config"]["propertyNames"]["not"]["enum"])
    assert managed <= {option.name for option in options()}
    own = {variable for pod in pods(values=VALUES["everything"])[:1] for variable in pod.environ()}
    free = {"KAFSCALE_SUPER_USER", *(f"KAFSCALE_{name.upper().replace('-', '_')}" for name in _config("everything"))}
    free |= {BOOTSTRAP_VARIABLE, COMMAND_CONFIG_VARIABLE, "KAFSCALE_CACHE_DIRECTORY"}
    taken = {option.name for option in options() if option.variable in own - free}
    assert taken <= managed
    assert "additional" in template("store.url=s3://a", "store.uri=s3://a").stderr
    assert "listen" in template("store.url=s3://a", "config.listen=0.0.0.0:1").stderr


def _config(name: str) -> list[str]:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())["config"]
    return [*defaults, *yaml.safe_load(VALUES[name].read_text())["config"]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((), "store.url is missing"),
        (("tls.enabled=true",), "tls.enabled needs tls.secretName"),
        (("sasl.enabled=true",), "sasl.enabled needs tls.enabled"),
        (("sasl.enabled=true", "tls.enabled=true", "tls.secretName=a"), "sasl.enabled needs sasl.keySecret"),
        (("config.authorizer=acl",), "config.authorizer=acl needs tls.enabled"),
        (("config.durability=wal",), "config.durability=wal needs persistence.enabled=true"),
        (("config.several-brokers=false",), "replicaCount above 1 needs config.several-brokers=true"),
        (("external.enabled=true",), "external.type=LoadBalancer needs external.host with {index}"),
        (("external.enabled=true", "external.type=NodePort", "replicaCount=11"), "at most 10 brokers"),
        (("external.enabled=true", "external.type=NodePort", "external.firstNodePort=31095"), "divisible by 10"),
        (
            ("console.enabled=true", "tls.enabled=true", "tls.secretName=a", "tls.clientAuth=required"),
            "console.enabled has no certificate",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(settings: tuple[str, ...], message: str) -> None:
    done = template(*(("store.url=s3://events",) if settings else ()), *settings)
    assert done.returncode != 0
    assert message in done.stderr


def test_three_brokers_share_the_bucket_by_default() -> None:
    found = [broker_settings(pod) for pod in pods(values=VALUES["default"])]
    assert [settings.broker_id for settings in found] == [0, 1, 2]
    for index, settings in enumerate(found):
        assert settings.several_brokers
        assert settings.durability is Durability.S3_WAL
        assert settings.rack == f"zone-{'abc'[index]}"
        assert settings.inter_broker_listener == "BROKERS"
        assert [str(listener) for listener in settings.advertised_listeners] == [
            f"BROKERS=kafscale-{index}.{DOMAIN}:9093",
            f"CLIENTS=kafscale-{index}.{DOMAIN}:9092",
        ]


def test_a_pod_without_the_label_of_a_zone_has_no_rack() -> None:
    """Kubernetes before 1.35 leaves the variable empty."""
    [pod, *_] = pods(values=VALUES["default"])
    pod.zone = ""
    assert broker_settings(pod).rack is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("load-balancers", [f"broker-{index}.kafka.example.com:9094" for index in range(3)]),
        ("node-ports", [f"127.0.0.1:{31090 + index}" for index in range(3)]),
    ],
)
def test_each_broker_tells_clients_outside_the_address_of_its_own_service(name: str, told: list[str]) -> None:
    found = manifests(values=VALUES[name])
    brokers = pods(values=VALUES[name])
    assert [str(broker_settings(pod).advertised_listeners[-1]) for pod in brokers] == [
        f"EXTERNAL={address}" for address in told
    ]
    services = {manifest["metadata"]["name"]: manifest for manifest in of_kind(found, "Service")}
    for pod, address in zip(brokers, told, strict=True):
        service = services[f"kafscale-external-{pod.index}"]
        assert service["spec"]["selector"].items() <= pod.labels.items()
        [port] = service["spec"]["ports"]
        assert int(address.rpartition(":")[2]) == port.get("nodePort", port["port"])
        annotations = service["metadata"].get("annotations", {})
        assert list(annotations.values()) == ([address.rpartition(":")[0]] if name == "load-balancers" else [])


@each_values
def test_services_lead_to_ports_and_pods_that_are_there(name: str) -> None:
    found = manifests(values=VALUES[name])
    templates = [
        manifest["spec"]["template"] for manifest in found if manifest["kind"] in ("StatefulSet", "Deployment")
    ]
    for service in of_kind(found, "Service"):
        selector = {
            key: value
            for key, value in service["spec"]["selector"].items()
            if key != "statefulset.kubernetes.io/pod-name"
        }
        [pod] = [
            pod
            for pod in templates
            if selector.items() <= pod["metadata"]["labels"].items()
            and {port["targetPort"] for port in service["spec"]["ports"]}
            <= {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        ]
        assert pod
    [stateful_set] = of_kind(found, "StatefulSet")
    [headless] = [manifest for manifest in of_kind(found, "Service") if manifest["spec"].get("clusterIP") == "None"]
    assert headless["metadata"]["name"] == stateful_set["spec"]["serviceName"]
    assert headless["spec"]["publishNotReadyAddresses"] is True
    for monitor in of_kind(found, "ServiceMonitor"):
        watched = [
            service
            for service in of_kind(found, "Service")
            if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        ]
        assert watched == [headless]


@each_values
def test_containers_are_confined(name: str) -> None:
    for spec in pod_specs(manifests(values=VALUES[name])):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["enableServiceLinks"] is False
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert not [volume for volume in spec.get("volumes", ()) if "hostPath" in volume]


def test_pods_run_as_the_user_of_the_image() -> None:
    [spec] = pod_specs(manifests(values=VALUES["default"]))
    [user] = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    context = spec["securityContext"]
    assert (str(context["runAsUser"]), str(context["runAsGroup"])) == user
    assert str(context["fsGroup"]) == user[1]  # which reads mounted secrets, of mode 0440


@each_values
def test_secrets_are_mounted_and_never_written_into_manifests(name: str) -> None:
    found = manifests(values=VALUES[name])
    assert of_kind(found, "Secret") == []
    for config_map in of_kind(found, "ConfigMap"):
        for text in config_map["data"].values():
            assert not [key for key in parse_properties(text) if "password" in key or "jaas" in key or "secret" in key]
    for spec in pod_specs(found):
        mounted = {mount["mountPath"]: mount for mount in spec["containers"][0].get("volumeMounts", ())}
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        for volume in volumes.values():
            if "secret" in volume and "items" not in volume["secret"]:
                assert volume["secret"]["defaultMode"] == 0o440
        for variable in spec["containers"][0].get("env", ()):
            value = variable.get("value", "")
            if value.startswith("/etc/kafscale/"):
                assert value.rpartition("/")[0] in mounted
    console = [spec for spec in pod_specs(found) if spec["containers"][0]["name"] == "console"]
    for volume in (volume for spec in console for volume in spec.get("volumes", ())):
        assert "secret" not in volume or [item["key"] for item in volume["secret"]["items"]] == ["ca.crt"]


@each_values
def test_kubernetes_kills_a_broker_only_after_its_shutdown_timeout(name: str) -> None:
    for pod in pods(values=VALUES[name]):
        timeout_seconds = broker_settings(pod).shutdown_timeout_seconds
        assert pod.spec["terminationGracePeriodSeconds"] == timeout_seconds + KILLED_AFTER_SECONDS


def test_the_memory_limit_covers_all_budgets_of_the_broker() -> None:
    [pod, *_] = pods(values=VALUES["default"])
    settings = broker_settings(pod)
    always = settings.chunk_pool_bytes + settings.cache_bytes + settings.fetch_buffer_bytes + BEYOND_BUDGETS_BYTES
    most = (
        always
        + settings.limits.queued_max_request_bytes
        + settings.limits.group_state_bytes
        + settings.limits.max_producer_state_bytes
    )
    resources = pod.container["resources"]
    assert always <= _bytes(resources["requests"]["memory"])
    assert most <= _bytes(resources["limits"]["memory"])
    assert "cpu" not in resources["limits"]  # a broker without CPU misses heartbeats
    text = " ".join((CHART / "values.yaml").read_text().split())
    assert f"{always // MIB} MiB with ordinary clients, and to {most // MIB:,} MiB" in text


def _bytes(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * {"Mi": MIB, "Gi": 1024 * MIB}[unit]


def test_probes_ask_what_needs_no_token() -> None:
    [pod, *_] = pods(values=VALUES["everything"])
    container = pod.container
    assert container["readinessProbe"]["httpGet"] == {"port": "admin", "scheme": "HTTPS", "path": "/readyz"}
    assert container["livenessProbe"]["httpGet"] == {"port": "admin", "scheme": "HTTPS", "path": "/healthz"}
    settings = broker_settings(pod)
    assert settings.admin_ssl
    assert settings.admin_token_file is not None


def test_logins_are_required_where_sasl_is_enabled() -> None:
    [pod, *_] = pods(values=VALUES["secured"])
    settings = broker_settings(pod)
    protocols = {listener.name: settings.protocol_of(listener).value for listener in settings.listeners}
    assert protocols == {"BROKERS": "SSL", "CLIENTS": "SASL_SSL"}
    assert settings.ssl.ssl_client_auth.value == "required"
    assert [str(user) for user in settings.super_users] == ["User:CN=kafscale,O=ours"]


def test_access_is_by_annotation_of_the_service_account() -> None:
    found = manifests(values=VALUES["everything"])
    [account] = of_kind(found, "ServiceAccount")
    assert account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].startswith("arn:aws:iam::")
    [spec] = [spec for spec in pod_specs(found) if "serviceAccountName" in spec]
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert not [variable for variable in spec["containers"][0]["env"] if variable["name"].startswith("AWS_")]


def test_the_console_has_the_options_that_the_chart_gives() -> None:
    [container] = [spec["containers"][0] for spec in pod_specs(manifests(values=VALUES["console"]))][:1]
    assert container["command"] == ["kafscale", "console"]
    known = {name for parameter in console_command.params for name in parameter.opts}
    assert {argument.partition("=")[0] for argument in container["args"]} == {"--bootstrap", "--listen"} <= known
    assert {variable["name"] for variable in container.get("env", ())} <= {COMMAND_CONFIG_VARIABLE}


def test_the_readme_lists_all_values_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = re.findall(r"^\| (`.+?`) \|", (CHART / "README.md").read_text(), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    assert listed == leaves(values)
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert set(values) == set(schema) - {"global"}
    for name, value in values.items():
        if schema[name].get("additionalProperties") is False:
            assert set(value) == set(schema[name]["properties"])


def leaves(values: Manifest) -> set[str]:
    """Return the names of all values, of which some have values of their own that the chart does not name."""
    free = {"config", "resources"}
    found: set[str] = set()
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in free:
            found |= {f"{name}.{inner}" for inner in value}
        else:
            found.add(name)
    return found


@each_values
def test_notes_name_addresses_that_the_manifests_have(name: str, tmp_path: Path) -> None:
    """Helm shows notes of an installation only, so a manifest of a copied chart includes them."""
    chart = tmp_path / "kafscale"
    shutil.copytree(CHART, chart)
    included = '{{ include (print .Template.BasePath "/NOTES.txt") . | nindent 2 }}'
    (chart / "templates" / "notes.yaml").write_text(f"notes: |\n{included}\n")
    done = template(values=VALUES[name], chart=chart, only="templates/notes.yaml")
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["notes"]
    assert "rollout status statefulset/kafscale" in notes
    names = {manifest["metadata"]["name"] for manifest in of_kind(manifests(values=VALUES[name]), "Service")}
    domain = yaml.safe_load(VALUES[name].read_text()).get("clusterDomain", "cluster.local")
    found = set(re.findall(rf"([\w.-]+)\.{NAMESPACE}\.svc\.{re.escape(domain)}", notes))
    assert found
    assert {address.lstrip(".") for address in found} <= names


def test_the_chart_has_the_version_of_the_package() -> None:
    chart: Manifest = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
