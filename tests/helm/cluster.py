"""A stand-in for a Kubernetes cluster: it takes commands of `helm` and `kubectl` and runs the pods as processes.

`helm install` and `helm upgrade` render the chart by the real Helm, and the pods follow as a StatefulSet's do. What a
command needs that this is not raises AssertionError.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import attrs
import yaml

from tests.helm.charts import KUBE_VERSION, Manifest, helm
from tests.helm.pods import Pod, introduce, pods_of

EXPAND_SECONDS = 30.0


@attrs.define(eq=False)
class Cluster:
    """Namespaces with the pods of one release each. `machine` are values that this machine needs, by NAME=VALUE."""

    directory: Path
    machine: Sequence[str]
    pods: dict[str, list[Pod]] = attrs.field(factory=lambda: defaultdict(list), init=False)
    secrets: dict[str, dict[str, dict[str, str]]] = attrs.field(
        factory=lambda: defaultdict(lambda: defaultdict(dict)), init=False
    )
    _values: dict[str, list[str]] = attrs.field(factory=dict, init=False)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in (pod for pods in self.pods.values() for pod in pods):
            pod.kill()

    def run(self, line: str, variables: dict[str, str]) -> str:
        """Run a line of a shell. `A | kubectl …` gives the output of A to the command."""
        first, _, second = line.rpartition(" | ")
        given = self._shell(first, variables) if first else ""
        words = self._shell(f"printf '%s\\0' {second}", variables).split("\0")[:-1]
        match words:
            case ["helm", "install" | "upgrade", _release, chart, "--namespace", namespace, *arguments]:
                self._apply(namespace, chart, arguments)
                return ""
            case ["kubectl", "--namespace", namespace, *command]:
                return self._kubectl(namespace, command, given)
        raise AssertionError(f"not known here: {line}")

    def _shell(self, command: str, variables: dict[str, str]) -> str:
        done = subprocess.run(
            ["bash", "-euc", command], env=variables, capture_output=True, text=True, check=True, timeout=EXPAND_SECONDS
        )
        return done.stdout

    def _kubectl(self, namespace: str, command: Sequence[str], given: str) -> str:
        pods = {pod.name: pod for pod in self.pods[namespace]}
        match command:
            case ["rollout", "status", _]:
                for pod in pods.values():
                    pod.wait_ready()
            case ["exec", name, "--", *words]:
                return pods[name].execute(words)
            case ["exec", "-i", name, "--", *words]:
                return pods[name].execute(words, stdin=given)
            case ["create", "secret", "generic", secret, literal]:
                key, _, value = literal.removeprefix("--from-literal=").partition("=")
                self.secrets[namespace][secret][key] = value
            case ["wait", "--for=delete", name, _]:
                assert name.removeprefix("pod/") not in pods
            case _:
                raise AssertionError(f"not known here: kubectl {' '.join(command)}")
        return ""

    def _apply(self, namespace: str, chart: str, arguments: Sequence[str]) -> None:
        own = [word for word in arguments if word not in ("--create-namespace", "--reuse-values")]
        earlier = self._values.get(namespace, []) if "--reuse-values" in arguments else []
        self._values[namespace] = [*earlier, *own]
        sets = [word for setting in self.machine for word in ("--set", setting)]
        where = ["--namespace", namespace, "--kube-version", KUBE_VERSION]
        done = helm("template", "kafscale", chart, *where, *self._values[namespace], *sets, cwd=self.directory)
        assert done.returncode == 0, done.stderr
        found = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest is not None]
        wanted = pods_of(found, self.directory / namespace, secrets=self.secrets[namespace], namespace=namespace)
        self._follow(namespace, wanted)

    def _follow(self, namespace: str, wanted: list[Pod]) -> None:
        """Do what a StatefulSet's controller does: add or remove the last pods, then replace changed ones."""
        pods = self.pods[namespace]
        for pod in reversed(pods[len(wanted) :]):
            pod.stop()
        del pods[len(wanted) :]
        added = wanted[len(pods) :]
        pods.extend(added)
        introduce(pods)
        for pod in added:
            pod.start()
        for pod in added:
            pod.wait_ready()
        for pod in reversed(pods):
            changed = wanted[pod.index].stateful_set
            if pod_template(changed) != pod_template(pod.stateful_set):
                pod.replace(changed)


def pod_template(stateful_set: Manifest) -> Manifest:
    found: Manifest = stateful_set["spec"]["template"]
    return found
