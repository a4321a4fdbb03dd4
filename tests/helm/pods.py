"""Pods of the chart's StatefulSet as processes: the environment and command that a kubelet would give, on the loopback.

A name or address of the cluster is replaced by an address of this machine, the data directory by a temporary one, and
mounted files by files. Everything else is as the manifest and the Dockerfile have it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from tests.devtools.external.clients import wait_until
from tests.devtools.external.s3_processes import free_port
from tests.helm.charts import NAMESPACE, REPOSITORY, Manifest, of_kind
from tests.helm.volumes import mount

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text().partition("AS broker\n")[2].partition("\nFROM ")[0]
POD_INDEX = "apps.kubernetes.io/pod-index"
ZONE = "topology.kubernetes.io/zone"
READY_SECONDS = 300.0  # a second or two where nothing else runs
COMMAND_SECONDS = 120.0
PYTHON_MODULE = (sys.executable, "-m")
LOOPBACK = "127.0.0.1"

_REFERENCE = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")
_FIELD = re.compile(r"metadata\.labels\['(.+)'\]")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace $(NAME) by a variable's value, as Kubernetes does: $$ is a dollar, and an unknown name stays."""

    def meaning(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(meaning, text)


def image_environ() -> dict[str, str]:
    """Return the variables that the image sets, but for the PATH."""
    [text] = re.findall(r"^ENV (.+?[^\\])$", DOCKERFILE, re.MULTILINE | re.DOTALL)
    pairs = (word.partition("=") for word in text.replace("\\\n", " ").split())
    return {name: value for name, _, value in pairs if name != "PATH"}


def image_command() -> list[str]:
    """Return the image's entry point."""
    [text] = re.findall(r"^ENTRYPOINT (\[.+\])$", DOCKERFILE, re.MULTILINE)
    command: list[str] = json.loads(text)
    return command


@attrs.define(eq=False, kw_only=True)
class Pod:
    """One pod. `start` and `stop` do what a kubelet does; its volumes are gone when it has stopped."""

    stateful_set: Manifest
    index: int
    zone: str
    directory: Path
    namespace: str = NAMESPACE
    secrets: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    config_maps: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    places: dict[str, str] = attrs.field(factory=dict)  # what stands for a name of the cluster
    ports: dict[int, int] = attrs.field(factory=dict, init=False)
    process: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.ports = {port["containerPort"]: free_port() for port in self.container["ports"]}

    @property
    def name(self) -> str:
        return f"{self.stateful_set['metadata']['name']}-{self.index}"

    @property
    def domain(self) -> str:
        """Return the name of the headless Service, in which the pod has its own name."""
        return f"{self.stateful_set['spec']['serviceName']}.{self.namespace}.svc.cluster.local"

    @property
    def spec(self) -> Manifest:
        found: Manifest = self.stateful_set["spec"]["template"]["spec"]
        return found

    @property
    def container(self) -> Manifest:
        [found] = self.spec["containers"]
        return dict(found)

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels that the StatefulSet's controller and the binding to a node give, and the template's."""
        own: dict[str, str] = self.stateful_set["spec"]["template"]["metadata"]["labels"]
        return own | {POD_INDEX: str(self.index), "statefulset.kubernetes.io/pod-name": self.name, ZONE: self.zone}

    @property
    def data(self) -> Path:
        return self.directory / "data" / self.name

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def address(self, container_port: int) -> str:
        return f"{LOOPBACK}:{self.ports[container_port]}"

    def environ(self) -> dict[str, str]:
        """Return the variables of the container, as Kubernetes resolves them."""
        found: dict[str, str] = {}
        for variable in self.container["env"]:
            source = variable.get("valueFrom")
            text = expand(variable["value"], found) if source is None else self._value_from(source)
            found[variable["name"]] = text
        return found

    def _value_from(self, source: Manifest) -> str:
        if "secretKeyRef" in source:
            return self.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        path = source["fieldRef"]["fieldPath"]
        label = _FIELD.fullmatch(path)
        if label is not None:
            return self.labels.get(label[1], "")
        return {"metadata.name": self.name, "status.hostIP": LOOPBACK}[path]

    def here(self, text: str) -> str:
        for port, free in self.ports.items():
            text = text.replace(f"0.0.0.0:{port}", f"{LOOPBACK}:{free}")
        for written, place in {**self.places, **self.mounted()}.items():
            text = text.replace(written, str(place))
        return text

    def mounted(self) -> dict[str, Path]:
        """Return what stands for each path of the container at which something is mounted."""
        found = {mount["mountPath"]: self.volume(mount["name"]) for mount in self.container["volumeMounts"]}
        return {**found, "/data": self.data}

    def volume(self, name: str) -> Path:
        return self.directory / "volumes" / self.name / name

    def mount_files(self) -> None:
        """Write the pod's Secrets and ConfigMaps, or what they have become; Kubernetes does so within a minute."""
        for volume in self.spec.get("volumes", ()):
            if "secret" in volume:
                mount(self.volume(volume["name"]), self.secrets[volume["secret"]["secretName"]])
            elif "configMap" in volume:
                texts = self.config_maps[volume["configMap"]["name"]]
                mount(self.volume(volume["name"]), {name: self.here(text) for name, text in texts.items()})

    def process_environ(self) -> dict[str, str]:
        """Return the variables of a process in the container: the image's, then the pod's."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("KAFSCALE_", "AWS_"))}
        inside = {**image_environ(), **self.environ()}
        return {**outside, **{name: self.here(value) for name, value in inside.items()}}

    def start(self) -> None:
        self.data.mkdir(mode=0o700, parents=True)
        self.mount_files()
        command = [*PYTHON_MODULE, *image_command(), *self.container.get("args", ())]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.process_environ(), stdout=log, stderr=log, cwd=self.data)

    def execute(self, command: Sequence[str], *, stdin: str = "") -> str:
        """Run a command of `kafscale` as `kubectl exec` does, and return its output."""
        assert command[0] == "kafscale"
        done = subprocess.run(
            [*PYTHON_MODULE, *command],
            env=self.process_environ(),
            cwd=self.data,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def probe(self, name: str) -> bool:
        """Ask as the kubelet does: by HTTP, on the named port."""
        asked = self.container[name]["httpGet"]
        [port] = [port["containerPort"] for port in self.container["ports"] if port["name"] == asked["port"]]
        url = f"{asked['scheme'].lower()}://{self.address(port)}{asked['path']}"
        unverified = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())  # as a kubelet's
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), unverified)
        try:
            with opener.open(url, timeout=self.container[name]["timeoutSeconds"]) as answer:
                return 200 <= answer.status < 400
        except OSError:
            return False

    def wait_ready(self) -> None:
        assert self.process is not None
        wait_until(self._is_ready_or_gone, f"{self.name} is ready", seconds=READY_SECONDS)
        assert self.process.poll() is None, self.log.read_text()[-4000:]

    def wait_available(self) -> None:
        """Wait as a StatefulSet does before it goes on: until the pod has been ready for minReadySeconds on end."""
        probe = self.container["readinessProbe"]
        self.wait_ready()
        give_up_at, ready_since, failures = time.monotonic() + READY_SECONDS, time.monotonic(), 0
        while time.monotonic() < ready_since + self.stateful_set["spec"]["minReadySeconds"]:
            assert time.monotonic() < give_up_at, self.log.read_text()[-4000:]
            time.sleep(probe["periodSeconds"])
            failures = 0 if self.probe("readinessProbe") else failures + 1
            if failures >= probe["failureThreshold"]:
                ready_since = time.monotonic()

    def _is_ready_or_gone(self) -> bool:
        return self.probe("readinessProbe") or (self.process is not None and self.process.poll() is not None)

    def stop(self) -> float:
        """Delete the pod. Returns the seconds that its end took; raises where Kubernetes would have killed it."""
        assert self.process is not None
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(self.spec["terminationGracePeriodSeconds"])
        finally:
            self.kill()
        assert code == 0, self.log.read_text()[-4000:]
        return time.monotonic() - begun

    def replace(self, changed: Manifest) -> float:
        """Delete the pod and run the changed one until it is available. Returns the seconds that the stop took."""
        seconds = self.stop()
        self.stateful_set = changed
        self.start()
        self.wait_available()
        return seconds

    def kill(self) -> None:
        """End the process at once, and remove the pod's volumes, which are an emptyDir."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.data, ignore_errors=True)


def pods_of(
    found: Sequence[Manifest],
    directory: Path,
    *,
    zones: Sequence[str] = ("zone-a", "zone-b", "zone-c"),
    secrets: Mapping[str, Mapping[str, str]] | None = None,
    namespace: str = NAMESPACE,
) -> list[Pod]:
    """Return the pods of the manifests' StatefulSet, spread over zones; each finds the others where they listen."""
    [stateful_set] = of_kind(found, "StatefulSet")
    pods = [
        Pod(
            stateful_set=stateful_set,
            index=index,
            zone=zones[index % len(zones)],
            directory=directory,
            secrets=secrets or {},
            namespace=namespace,
            config_maps={manifest["metadata"]["name"]: manifest["data"] for manifest in of_kind(found, "ConfigMap")},
        )
        for index in range(stateful_set["spec"]["replicas"])
    ]
    introduce(pods)
    return pods


def introduce(pods: Sequence[Pod]) -> None:
    """Let each pod find the others by the names of the headless Service: one of each pod, and one of all."""
    places = {f"{pod.name}.{pod.domain}:{port}": pod.address(port) for pod in pods for port in pod.ports}
    places |= {
        f"{pod.domain}:{port}": ",".join(other.address(port) for other in pods) for pod in pods for port in pod.ports
    }
    for pod in pods:
        pod.places = places
