"""The chart as Helm renders it: lint, manifests and refusals, for the values of `tests/helm/values`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "deploy" / "helm" / "kafscale"
VALUES = {path.stem: path for path in sorted((Path(__file__).parent / "values").glob("*.yaml"))}
NAMESPACE = "data"
KUBE_VERSION = "1.35.0"
TIMEOUT_SECONDS = 300.0  # it takes a second where nothing else runs
HELM_MISSING = "helm is not on the PATH; `make test-helm` builds it"

Manifest = dict[str, Any]


def helm_program() -> str | None:
    """Return the path of Helm: the one on the PATH, or the one that `make test-helm` has built."""
    return shutil.which("helm") or shutil.which("helm", path=str(REPOSITORY / "build" / "bin"))


def helm(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    program = helm_program()
    assert program is not None, HELM_MISSING
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS, cwd=cwd
    )


def template(
    *settings: str, values: Path | None = None, chart: Path = CHART, only: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `helm template`; `settings` are NAME=VALUE, and `only` is a template's path in the chart."""
    files = [] if values is None else ["--values", str(values)]
    sets = [word for setting in settings for word in ("--set", setting)]
    where = ["--namespace", NAMESPACE, "--kube-version", KUBE_VERSION, *(["--show-only", only] if only else [])]
    return helm("template", "kafscale", str(chart), *where, *files, *sets)


@cache
def rendered(*settings: str, values: Path | None = None) -> str:
    """Return the manifests as text; Helm runs once for the same values."""
    done = template(*settings, values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(*settings: str, values: Path | None = None) -> list[Manifest]:
    return [manifest for manifest in yaml.safe_load_all(rendered(*settings, values=values)) if manifest is not None]


def of_kind(found: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in found if manifest["kind"] == kind]


def pod_specs(found: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yield the specification of each kind of pod."""
    for manifest in found:
        if manifest["kind"] in ("StatefulSet", "Deployment"):
            yield manifest["spec"]["template"]["spec"]
