"""The wheel as users install it: built by `make wheel`, and taken through README's tour in empty environments.

Each Python of this machine has its turn by pip; uvx and pipx have one each. Nothing of the clone is on their path.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.devtools.external.clients import wait_until
from tests.devtools.external.registry import running_registry
from tests.docs.blocks import blocks_of
from tests.packages.environments import (
    REPOSITORY,
    Environment,
    RunningBroker,
    make_clone,
    program,
    python_of,
    run,
    serving,
    tracked_files,
)

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(2400)]

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
README = (REPOSITORY / "README.md").read_text()
KCAT, CONFLUENT, KAFSCALE = [
    text for _, text in blocks_of(README.partition("## Thirty seconds")[2].partition("\n## ")[0])
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone in which `make wheel` has run; its `dist` has the wheel and the sdist."""
    shipped = [
        name for name in tracked_files() if name.startswith(("kafscale/", "pyspark_kafscale/")) or "/" not in name
    ]
    path = make_clone(tmp_path_factory.mktemp("clone"), shipped)
    run(["make", "wheel", f"VENV={sys.prefix}"], cwd=path)
    return path


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    (found,) = (clone / "dist").glob("*.whl")
    return found


def test_the_wheel_has_every_tracked_file_of_the_packages_and_no_other(wheel: Path) -> None:
    """It is built from the sdist, so that has them too."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked_files() if name.startswith(("kafscale/", "pyspark_kafscale/"))}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tour_runs_from_the_wheel(version: str, wheel: Path, tmp_path: Path) -> None:
    environment = Environment.create(python_of(version), tmp_path / "environment")
    environment.install(wheel)
    with serving([environment.bin("kafscale"), "serve"], environment.work) as broker:
        _take_the_tour(environment, broker)
    _check_types_and_plugin(environment)


def test_the_tour_runs_from_the_sdist(clone: Path, tmp_path: Path) -> None:
    (sdist,) = (clone / "dist").glob("*.tar.gz")
    environment = Environment.create(sys.executable, tmp_path / "environment")
    environment.install(sdist)
    with serving([environment.bin("kafscale"), "serve"], environment.work) as broker:
        _take_the_tour(environment, broker)


def _take_the_tour(environment: Environment, broker: RunningBroker) -> None:
    """Run README's blocks, on this broker's port and with this environment's programs."""
    work = environment.work

    def shell(block: str) -> str:
        commands = block.replace("127.0.0.1:9092", broker.bootstrap).replace(".venv/bin/", f"{environment.path}/bin/")
        return run(["bash", "-euc", commands], cwd=work, KAFSCALE_BOOTSTRAP=broker.bootstrap)

    if shutil.which("kcat"):
        assert shell(KCAT).split() == ["one", "two"]
    environment.install("confluent-kafka")
    (work / "tour.py").write_text(CONFLUENT.replace("127.0.0.1:9092", broker.bootstrap))
    read = run([environment.bin("python"), "tour.py"], cwd=work).splitlines()
    assert sorted(read) == sorted(f"{number} reading {number}" for number in range(1000))
    told = shell(KAFSCALE)
    assert told.split()[:2] == ["one", "two"]
    assert re.search(r"^readings +1 +", told, re.MULTILINE), told
    assert re.search(r"^readings +0 +1000", told, re.MULTILINE), told  # the committed offset of the group
    bucket = work / "kafscale-data" / "bucket"
    wait_until(lambda: [*bucket.rglob("*.kfs")], "a segment in the bucket", seconds=300)
    assert "records" in run([environment.bin("kafscale"), "inspect", next(bucket.rglob("*.kfs"))], cwd=work)


def _check_types_and_plugin(environment: Environment) -> None:
    """A type checker believes the annotations of the package, and pytest finds its fixtures."""
    typed = "import importlib.resources as r; print((r.files('kafscale') / 'py.typed').is_file())"
    assert run([environment.bin("python"), "-c", typed], cwd=environment.work) == "True\n"
    environment.install("pytest")
    (environment.work / "test_user.py").write_text(
        "def test_a_broker(kafscale_broker):\n"
        "    kafscale_broker.create_topic('orders')\n"
        "    assert list(kafscale_broker.records('orders')) == []\n"
    )
    assert "1 passed" in run([environment.bin("pytest"), "-q", "test_user.py"], cwd=environment.work)


# ---- uvx and pipx -------------------------------------------------------------------------------------------------


def test_uvx_runs_readmes_command(clone: Path) -> None:
    program("uvx")
    (command,) = re.findall(r"^uvx --from dist/kafscale-\*\.whl kafscale serve\b", README, re.MULTILINE)
    with serving(["bash", "-euc", f"exec {command}"], clone) as broker:
        kafscale = [*command.split()[:1], "--from", next((clone / "dist").glob("*.whl")), "kafscale"]
        run([*kafscale, "produce", "greetings", "--bootstrap", broker.bootstrap], cwd=clone, stdin="one\n")
        read = [*kafscale, "consume", "greetings", "--from-beginning", "--bootstrap", broker.bootstrap]
        assert run(read, cwd=clone) == "one\n"


def test_pipx_installs_the_wheel_and_the_printed_command_adds_an_extra(wheel: Path, tmp_path: Path) -> None:
    pipx = program("pipx")
    places = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    run([pipx, "install", "--python", sys.executable, wheel], cwd=tmp_path, **places)
    kafscale = tmp_path / "bin" / "kafscale"
    command = _printed_command(lambda: run([kafscale, "sql", "select 1"], cwd=tmp_path))
    run(["bash", "-euc", f"exec {command} --python {sys.executable}"], cwd=tmp_path, **places)
    assert (
        run([kafscale, "sql", "--engine", "duckdb", "--format", "csv", "select 1 as one"], cwd=tmp_path) == "one\n1\n"
    )


# ---- extras -------------------------------------------------------------------------------------------------------

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "price", "type": "double"}]}'
PRODUCE = """
import io, struct, sys
import confluent_kafka, fastavro
bootstrap, schema, schema_id = sys.argv[1:]
out = io.BytesIO(b"\\0" + struct.pack(">i", int(schema_id)))
out.seek(5)
fastavro.schemaless_writer(out, fastavro.parse_schema(eval(schema)), {"price": 2.5})
producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
producer.produce("orders", out.getvalue())
assert producer.flush(30) == 0
"""


def test_sql_over_avro_needs_two_extras_and_no_spark(wheel: Path, tmp_path: Path) -> None:
    """The commands that add the extras are those that the errors print."""
    environment = Environment.create(sys.executable, tmp_path / "environment")
    environment.install(wheel, "confluent-kafka")
    kafscale, work = environment.bin("kafscale"), environment.work
    command = _printed_command(lambda: run([kafscale, "sql", "select 1"], cwd=work))
    run(["bash", "-euc", command], cwd=work)
    with running_registry() as registry, serving([kafscale, "serve"], work) as broker:
        schema_id = registry.register("orders-value", AVRO)
        sql = [kafscale, "sql", "--engine", "duckdb", "--format", "csv", "--store", "file:kafscale-data/bucket"]
        sql += ["--value-format", "avro", "--registry", registry.url, "select decoded.price from orders"]
        run([kafscale, "topics", "create", "orders", "--bootstrap", broker.bootstrap], cwd=work)
        command = _printed_command(lambda: run(sql, cwd=work))
        assert command.endswith("[avro]'")
        run(["bash", "-euc", command], cwd=work)
        (work / "produce.py").write_text(PRODUCE)
        run([environment.bin("python"), "produce.py", broker.bootstrap, AVRO, str(schema_id)], cwd=work)
        run([kafscale, "flush", "--admin", broker.admin], cwd=work)
        assert run(sql, cwd=work) == "price\n2.5\n"
    with pytest.raises(AssertionError, match="No module named 'pyspark'"):
        run([environment.bin("python"), "-c", "import pyspark"], cwd=work)


def _printed_command(fails: Callable[[], str]) -> str:
    with pytest.raises(AssertionError, match="which the extra `") as caught:
        fails()
    return str(caught.value).partition("` has: ")[2].strip()
