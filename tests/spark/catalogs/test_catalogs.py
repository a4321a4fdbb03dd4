"""Each catalog of the page on catalogs, as it is written there but for addresses, is filled by `kafscale pipeline` and
read back by `kafscale sql`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.devtools.external.spark import REPOSITORY, environ_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

PAGE = (REPOSITORY / "docs" / "how-to" / "iceberg-catalogs.md").read_text()
CATALOGS = [
    yaml.safe_load(text)["catalog"] for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
]
QUICK_JAVA = "--conf=spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # of a JVM of seconds
METASTORES = ["hive_2", "hive_3"]  # what a catalog of type hive is tried with, each a fixture
CREDENTIAL = "id:secret"
QUERY = "SELECT count(*) AS records, sum(CAST(CAST(value AS STRING) AS INT)) AS total FROM lake.sales.orders"


def name_of(catalog: dict[str, str]) -> str:
    kept_by = catalog.get("uri", "").split(":")[1] if catalog["type"] == "jdbc" else catalog["type"]
    return f"{kept_by}-{'s3' if catalog.get('warehouse', '').startswith('s3://') else 'directory'}"


def test_the_page_has_each_catalog() -> None:
    assert sorted(map(name_of, CATALOGS)) == [
        "glue-s3",
        "hadoop-directory",
        "hive-directory",
        "postgresql-directory",
        "postgresql-s3",
        "rest-directory",
        "sqlite-directory",
        "sqlite-s3",
    ]


@pytest.fixture
def served(request, catalog, metastore, tmp_path) -> dict[str, str | bool]:
    """The catalog with the addresses of servers that run, and the variables that it names filled in."""
    name, text = name_of(catalog), json.dumps(catalog)
    places = {"/data/": f"{tmp_path}/", "${CATALOG_CREDENTIAL}": CREDENTIAL}
    if name.startswith("postgresql"):
        postgres = request.getfixturevalue("postgres")
        places["db.example.com/iceberg"] = f"127.0.0.1:{postgres.port}/{postgres.database}"
        places["${ICEBERG_PASSWORD}"] = postgres.password
    if name.startswith("rest"):
        places["https://catalog.example.com/api/catalog"] = request.getfixturevalue("rest")
    if name.startswith("hive"):
        places["thrift://metastore.example.com:9083"] = request.getfixturevalue(metastore)
    if name.endswith("s3"):
        places["http://minio.example.com:9000"] = request.getfixturevalue("lake").server.endpoint
    for place, ours in places.items():
        text = text.replace(place, ours)
    return {**json.loads(text), **(not_of_amazon(request) if name.startswith("glue") else {})}


def not_of_amazon(request) -> dict[str, str | bool]:
    """Return the settings of a catalog whose Glue and whose S3 are elsewhere."""
    endpoint = request.getfixturevalue("lake").server.endpoint
    return {"uri": request.getfixturevalue("glue"), "s3_endpoint": endpoint, "s3_path_style": True}


def kafscale(*arguments: str, **environ: str) -> str:
    done = run(*arguments, **environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kafscale", *arguments, QUICK_JAVA],
        env=environ_of(**environ),
        capture_output=True,
        text=True,
        check=False,
    )


def pipeline_file(directory: Path, store: str, catalog: dict[str, str | bool]) -> str:
    pipeline = {
        "source": {"store": store},
        "catalog": catalog,
        "checkpoints": str(directory / "checkpoints"),
        "mappings": [{"topic": "orders", "table": "sales.orders"}],
    }
    file = directory / "pipeline.yaml"
    file.write_text(yaml.safe_dump(pipeline))
    return str(file)


def cases() -> Iterator[Any]:
    for catalog in CATALOGS:
        if catalog["type"] != "hive":
            yield pytest.param(catalog, None, id=name_of(catalog))
            continue
        yield from (pytest.param(catalog, each, id=name_of(catalog).replace("hive", each)) for each in METASTORES)


@pytest.mark.parametrize(("catalog", "metastore"), list(cases()))
def test_a_pipeline_fills_a_table_and_sql_reads_the_rows(request, catalog, served, store, tmp_path) -> None:
    lake = request.getfixturevalue("lake") if name_of(catalog).endswith("s3") else None
    environ = {} if lake is None else lake.environ
    file = pipeline_file(tmp_path, store, served)
    before = [] if lake is None else lake.keys("")
    kafscale("pipeline", "run", "--once", file, **environ)
    named = ",".join(f"{key.replace('_', '-')}={value}" for key, value in {"name": "lake", **served}.items())
    rows = kafscale("sql", "--format", "json", QUERY, KAFSCALE_SQL_CATALOG=named, **environ)
    assert json.loads(rows) == {"records": 100, "total": 4950}
    tables = list(Path(tmp_path, "warehouse").rglob("*.parquet")) if lake is None else set(lake.keys("")) - set(before)
    assert any(str(each).endswith(".parquet") for each in tables), "the rows are not where the catalog says"


@pytest.mark.parametrize(
    ("catalog", "metastore"), [pytest.param(each, "hive_4", id="hive_4") for each in CATALOGS if each["type"] == "hive"]
)
def test_a_hive_4_metastore_fails_the_pipeline_with_the_missing_call(catalog, served, store, tmp_path) -> None:
    """When this fails the page has another thing to say."""
    done = run("pipeline", "run", "--once", pipeline_file(tmp_path, store, served))
    assert done.returncode == 1
    assert "sales.orders: failed: " in done.stderr
    assert "Caused by: org.apache.thrift.TApplicationException: Invalid method name: 'get_table'" in done.stderr
