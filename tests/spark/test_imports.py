"""What a worker imports: no trio, nothing of the broker, and no pyspark where it is not called by it."""

import subprocess
import sys

import pytest

READING = (
    "import kafscale.spark, kafscale.spark.source.planning, kafscale.spark.source.progress, "
    "kafscale.spark.bucket.reading, kafscale.spark.session, kafscale.spark.pipeline.document"
)


def imported(program: str) -> set[str]:
    """The modules that a new Python has after the program."""
    program += "; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def of_the_broker(modules: set[str]) -> set[str]:
    layers = ("broker", "server", "api", "cluster", "client")
    return {name for name in modules if name.split(".")[:2] in [["kafscale", layer] for layer in layers]}


def test_planning_and_reading_import_neither_trio_nor_the_broker_nor_pyspark():
    modules = imported(READING)
    assert not modules & {"trio", "pyspark", "confluent_kafka"}
    assert not of_the_broker(modules)


@pytest.mark.spark
def test_the_source_imports_neither_trio_nor_the_broker():
    modules = imported("import pyspark_kafscale")
    assert "pyspark" in modules
    assert not modules & {"trio", "confluent_kafka"}
    assert not of_the_broker(modules)


@pytest.mark.parametrize(("before", "after"), [(None, sys.executable), ("/usr/bin/other", "/usr/bin/other")])
def test_workers_run_the_current_python_by_default(monkeypatch, before, after):
    if before is None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", before)
    program = "import kafscale.spark, os; print(os.environ['PYSPARK_PYTHON'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == after


WITH_JVM = "from pyspark import SparkContext; SparkContext._gateway = object(); "


@pytest.mark.parametrize(
    ("before", "environ", "after"),
    [
        ("", {}, "true"),
        ("", {"PYSPARK_UDS_MODE": "false"}, "false"),
        ("", {"PYSPARK_GATEWAY_PORT": "1"}, "None"),
        pytest.param("from pyspark import SparkContext; ", {}, "true", marks=pytest.mark.spark),
        pytest.param(WITH_JVM, {}, "None", marks=pytest.mark.spark),
    ],
)
def test_an_existing_jvm_keeps_its_connection_mode(monkeypatch, before, environ, after):
    """Only pyspark would know of another way, and lose what tasks add to accumulators."""
    for name in ("PYSPARK_UDS_MODE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    program = f"{before}import kafscale.spark, os; print(os.environ.get('PYSPARK_UDS_MODE'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == after
