"""The Spark of a command: embedded unless `master` says otherwise, with the jars that it needs, and quiet.

Spark resolves the jars. A file of the user's cache keeps which files they were, so that later starts, and those without
a network, take the files that are there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs

import kafscale.spark
from kafscale.errors import StartupError
from kafscale.extras import install_command, missing_extra
from kafscale.spark import catalogs
from kafscale.spark.catalogs import CatalogOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMED = re.compile(r"(?:Exception|Error): ")  # the raised class, in front of its message


def first_line(exc: Exception) -> str:
    """Return an error of Java in one line: the first that names the raised class, or else the first."""
    lines = [line.strip().removeprefix(": ") for line in str(exc).splitlines() if line.strip()]
    named = [line for line in lines if _NAMED.search(line)]
    return next(iter([*named, *lines]), type(exc).__name__)


MASTER_DEFAULT = "local[*]"
JAVA_OLDEST = 17  # Spark 4 runs on no older one
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.authenticate.socketTimeout": "120s",  # Spark's 15 s are short for a machine that is busy
    # Names of what its UI and its event log leave out: Spark's own, and behind them what else secrets are called here.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential|basic[_.]?auth",
}
JARS = ("spark.jars", "spark.jars.packages")
RESOLVED = ("spark.jars", "spark.submit.pyFiles")  # where Spark lists them; the first only if it was not set
LOGGING = Path(__file__).with_name("log4j2.properties")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOCAL_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",  # Spark's 200 are for clusters
}

_JAVA_RELEASE = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@attrs.frozen(kw_only=True)
class SessionOptions:
    """Options of a session. Settings in `conf` win; `packages` are coordinates besides those of the catalogs."""

    master: str = MASTER_DEFAULT
    app_name: str = "kafscale"
    conf: Mapping[str, str] = attrs.field(factory=dict)
    catalogs: Sequence[CatalogOptions] = ()
    packages: Sequence[str] = ()

    def settings(self) -> dict[str, str]:
        """Return Spark's settings, except the jars."""
        local = LOCAL_DEFAULTS if self.master.startswith("local") else {}
        logging = {JAVA_OPTIONS: f"-Dlog4j2.configurationFile={LOGGING} {self.conf.get(JAVA_OPTIONS, '')}".strip()}
        catalogs = {name: value for catalog in self.catalogs for name, value in catalog.conf().items()}
        if self.catalogs:
            catalogs["spark.sql.extensions"] = ",".join(dict.fromkeys(catalog.extensions for catalog in self.catalogs))
        settings = {**DEFAULTS, **local, **catalogs, **self.conf, **logging}
        return {name: value for name, value in settings.items() if name not in JARS}

    def own_jars(self) -> Sequence[str]:
        return _listed(self.conf.get("spark.jars", ""))

    def coordinates(self) -> Sequence[str]:
        """Return the coordinates of all jars, each once, in order."""
        given = _listed(self.conf.get("spark.jars.packages", ""))
        needed = [jar for catalog in self.catalogs for jar in catalog.packages()]
        return list(dict.fromkeys([*needed, *self.packages, *given]))


def start_session(options: SessionOptions | None = None) -> SparkSession:
    """Start Spark. Raises StartupError, which says what is missing and how to get it."""
    options = SessionOptions() if options is None else options
    check_pyspark(needs_iceberg=bool(options.catalogs))
    check_java()
    from pyspark.sql import SparkSession

    if options.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark warns of the host's name
    cache = JarCache()
    coordinates = options.coordinates()
    builder = SparkSession.builder.master(options.master).appName(options.app_name)
    for name, value in {**options.settings(), **cache.settings(coordinates, options.own_jars())}.items():
        builder = builder.config(name, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as exc:  # py4j's and pyspark's own, whose text is Java's stack
        raise StartupError(f"Spark does not start on {options.master}: {first_line(exc)}") from exc
    session.sparkContext.setLogLevel(options.settings()["spark.log.level"])
    conf = session.sparkContext.getConf()
    jars = [jar for name in RESOLVED for jar in _listed(conf.get(name, ""))]
    cache.keep(coordinates, [jar for jar in jars if jar not in options.own_jars()])
    kafscale.spark.register(session)
    return session


@contextmanager
def jvm_may_have_gone() -> Iterator[None]:
    """Ignore py4j's errors about a JVM that has ended, in a block that only releases something."""
    from py4j.protocol import Py4JError

    with suppress(OSError, Py4JError):
        yield


def check_pyspark(*, needs_iceberg: bool = False) -> None:
    """Raise StartupError if pyspark is missing, or is not one that Iceberg runs on."""
    try:
        import pyspark
    except ImportError as exc:
        raise missing_extra("iceberg" if needs_iceberg else "spark", exc) from exc
    version = pyspark.__version__
    if needs_iceberg and version.split(".")[:2] != catalogs.ICEBERG_SPARK.split("."):
        raise StartupError(
            f"tables are written with Spark {catalogs.ICEBERG_SPARK}, which Iceberg {catalogs.ICEBERG_VERSION} is made "
            f"for, and pyspark here is {version}: {install_command('iceberg')}"
        )


def check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    where = f"JAVA_HOME ({home})" if home else "the PATH"
    if program is None:
        raise StartupError(f"Spark needs Java {JAVA_OLDEST}, and {where} has none: install a JDK or JRE")
    found = _java_version(program)
    if found is None or found < JAVA_OLDEST:
        version = "one that does not tell its version" if found is None else f"Java {found}"
        raise StartupError(f"Spark needs Java {JAVA_OLDEST} or newer, and {program} is {version}")


def _java_version(program: str) -> int | None:
    """Find the version in the file beside most Javas' programs, or ask Java itself, which starts slowly."""
    with suppress(OSError):
        release = Path(program).resolve().parents[1] / "release"
        if found := _JAVA_RELEASE.search(release.read_text(encoding="utf-8", errors="replace")):
            return int(found[1])
    told = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = _JAVA_VERSION.search(told.stderr)
    return None if found is None else int(found[1])


def _listed(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafscale"


@attrs.frozen
class JarCache:
    path: Path = attrs.field(factory=lambda: cache_directory() / "jars.json")

    def settings(self, coordinates: Sequence[str], own: Sequence[str] = ()) -> dict[str, str]:
        """Return Spark's settings for these jars and the user's own files."""
        files = self._read().get(_key(coordinates), [])
        is_known = bool(files) and all(Path(file).is_file() for file in files)
        jars = [*own, *files] if is_known else own
        settings = {"spark.jars": jars, "spark.jars.packages": [] if is_known else coordinates}
        return {name: ",".join(listed) for name, listed in settings.items() if listed}  # empty ones undo Spark's own

    def keep(self, coordinates: Sequence[str], jars: Iterable[str]) -> None:
        """Remember files that Spark resolved. If that fails, Spark resolves them again the next time."""
        files = list(dict.fromkeys(unquote(urlsplit(jar).path) for jar in jars))
        known = self._read()
        if not all(any(_is_of(file, coordinate) for file in files) for coordinate in coordinates):
            return  # a session was there already, with other jars
        if not coordinates or known.get(_key(coordinates)) == files:
            return
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft = self.path.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps({**known, _key(coordinates): files}, indent=2), encoding="utf-8")
            draft.replace(self.path)

    def _read(self) -> dict[str, list[str]]:
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def _key(coordinates: Iterable[str]) -> str:
    return ",".join(sorted(coordinates))


def _is_of(file: str, coordinate: str) -> bool:
    """Tell by the name that Ivy gives, group_artifact-version.jar, whether a file is that of a coordinate."""
    group, artifact, version = coordinate.split(":")[:3]
    return Path(file).name == f"{group}_{artifact}-{version}.jar"
