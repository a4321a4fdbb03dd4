"""The settings of a command's Spark, and what is said when it can't start; Spark itself is not started here."""

import re

import pytest

from kafscale.errors import ConfigError, StartupError
from kafscale.spark import catalogs, session
from kafscale.spark.catalogs import CatalogOptions
from kafscale.spark.session import JarCache, SessionOptions

HADOOP = CatalogOptions(type="hadoop", warehouse="/data/warehouse")


def test_the_users_settings_go_before_all_others():
    conf = {"spark.sql.catalog.lake.warehouse": "/elsewhere", "spark.log.level": "INFO"}
    settings = SessionOptions(catalogs=[HADOOP], conf=conf).settings()
    assert settings["spark.sql.catalog.lake.warehouse"] == "/elsewhere"
    assert settings["spark.log.level"] == "INFO"


def test_credentials_of_a_rest_catalog_were_in_sparks_event_log():
    catalog = CatalogOptions(type="rest", uri="http://h", token="hidden", credential="id:hidden")
    settings = SessionOptions(catalogs=[catalog]).settings()
    assert settings["spark.sql.catalog.lake.credential"] == "id:hidden"
    is_secret = re.compile(settings["spark.redaction.regex"]).search
    assert "hidden" not in str({name: value for name, value in settings.items() if not is_secret(name)})
    assert is_secret("option.schemaRegistryBasicAuth")
    assert not is_secret("spark.python.authenticate.socketTimeout")


def test_only_an_embedded_spark_stays_on_loopback():
    assert SessionOptions().settings()["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in SessionOptions(master="spark://host:7077").settings()


def test_jars_of_catalogs_and_users_are_named_once():
    conf = {"spark.jars.packages": f"{catalogs.ICEBERG_JAR}, org.example:more:1"}
    options = SessionOptions(catalogs=[HADOOP], conf=conf, packages=[catalogs.SQLITE_JAR])
    assert options.coordinates() == [catalogs.ICEBERG_JAR, catalogs.SQLITE_JAR, "org.example:more:1"]
    assert "spark.jars.packages" not in options.settings()


def test_packages_are_resolved_once(tmp_path):
    jar = tmp_path / "org.xerial_sqlite-jdbc-3.50.3.0.jar"
    jar.touch()
    cache = JarCache(tmp_path / "cache" / "jars.json")
    assert cache.settings([catalogs.SQLITE_JAR]) == {"spark.jars.packages": catalogs.SQLITE_JAR}
    cache.keep([catalogs.SQLITE_JAR], [jar.as_uri()])
    assert cache.settings([catalogs.SQLITE_JAR], ["own.jar"]) == {"spark.jars": f"own.jar,{jar}"}
    jar.unlink()
    assert cache.settings([catalogs.SQLITE_JAR]) == {"spark.jars.packages": catalogs.SQLITE_JAR}


def test_jars_of_an_existing_session_are_not_cached_as_the_requested_ones(tmp_path):
    cache = JarCache(tmp_path / "jars.json")
    cache.keep([catalogs.SQLITE_JAR], ["file:///elsewhere/another.jar"])
    assert not cache.path.exists()


def test_a_damaged_cache_is_passed_over(tmp_path):
    cache = JarCache(tmp_path / "jars.json")
    cache.path.write_text("{")
    assert cache.settings([catalogs.SQLITE_JAR]) == {"spark.jars.packages": catalogs.SQLITE_JAR}


def test_the_java_version_is_read_from_its_release_file(monkeypatch, tmp_path):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.touch(mode=0o755)  # would tell no version
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "release").write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="21.0.4"\n')
    session.check_java()
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(StartupError, match="is Java 8"):
        session.check_java()


def test_a_missing_java_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StartupError, match=rf"needs Java 17, and JAVA_HOME \({tmp_path}\) has none"):
        session.check_java()


@pytest.mark.parametrize(("told", "found"), [("11.0.2", "Java 11"), ("1.8.0_292", "Java 8")])
def test_an_old_java_is_an_error(monkeypatch, tmp_path, told, found):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{told}\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StartupError, match=f"17 or newer, and {program} is {found}"):
        session.check_java()


def test_a_missing_pyspark_is_an_error(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    with pytest.raises(StartupError, match=r"needs pyspark, which the extra `spark` has: .*\[spark\]'"):
        session.check_pyspark()


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"type": "nessie"}, "one of hadoop, jdbc, rest, hive, glue, delta, not 'nessie'"),
        ({"type": "hadoop"}, "needs a warehouse"),
        ({"type": "hadoop", "warehouse": "s3://bucket"}, "use another type"),
        ({"type": "rest"}, "needs a uri"),
        ({"type": "hive", "warehouse": "w"}, "needs a uri"),
        ({"type": "glue", "warehouse": "/data"}, "its warehouse is s3://"),
        ({"type": "jdbc", "warehouse": "w", "uri": "jdbc:mysql:x"}, "begins with jdbc:sqlite: or jdbc:postgresql:"),
        (
            {"type": "hadoop", "warehouse": "w", "s3_sse": "aws:kms"},
            "s3_sse: 'aws:kms' is not an encryption; allowed: AES256",
        ),
        ({"type": "delta"}, "needs a warehouse"),
        ({"type": "delta", "warehouse": "s3://b/p"}, "know S3 as s3a://"),
        ({"type": "delta", "warehouse": "w", "s3_region": "r"}, "has no s3_region"),
        ({"type": "hadoop", "warehouse": "w", "name": "a-b"}, "letters, digits and _"),
        ({"type": "hadoop", "warehouse": "w", "name": "spark_catalog"}, "another name"),
    ],
)
def test_a_catalog_that_can_not_be_is_refused(settings, wrong):
    with pytest.raises(ConfigError, match=wrong):
        CatalogOptions(**settings)


def test_a_database_gets_its_driver_and_its_user():
    catalog = CatalogOptions(type="jdbc", uri="jdbc:postgresql://h/d", warehouse="w", user="u", password="p")
    assert list(catalog.packages()) == [catalogs.ICEBERG_JAR, catalogs.POSTGRES_JAR]
    assert catalog.conf()["spark.sql.catalog.lake.jdbc.user"] == "u"
    assert "p'" not in repr(catalog)


def test_delta_is_a_directory_beside_the_catalogs_of_iceberg():
    delta = CatalogOptions(type="delta", warehouse="/data/lake/")
    assert delta.full_name("sales.orders") == "delta.`/data/lake/sales/orders`"
    assert list(delta.packages()) == [catalogs.DELTA_JAR]
    settings = session.SessionOptions(catalogs=[HADOOP, delta]).settings()
    assert settings["spark.sql.extensions"].split(",") == [HADOOP.extensions, delta.extensions]
    assert settings["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    assert settings["spark.sql.catalog.lake.type"] == "hadoop"


def test_a_pipelines_catalog_caches_no_tables_by_default():
    assert HADOOP.uncached().properties == {"cache-enabled": "false"}
    told = CatalogOptions(type="hadoop", warehouse="w", properties={"cache-enabled": "true"})
    assert told.uncached() == told
    delta = CatalogOptions(type="delta", warehouse="w")
    assert delta.uncached() == delta


def test_glue_needs_no_address_but_can_have_one():
    conf = CatalogOptions(type="glue", warehouse="s3://b/p").conf()
    assert not any(name.endswith((".uri", ".glue.endpoint")) for name in conf)
    conf = CatalogOptions(type="glue", warehouse="s3://b/p", uri="http://h").conf()
    assert conf["spark.sql.catalog.lake.glue.endpoint"] == "http://h"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("AES256", {"s3.sse.type": "s3"}),
        ("aws:kms:arn:aws:kms:r:1:key/2", {"s3.sse.type": "kms", "s3.sse.key": "arn:aws:kms:r:1:key/2"}),
        (None, {}),
    ],
)
def test_the_sse_option_sets_icebergs_encryption(asked, expected):
    catalog = CatalogOptions(type="rest", uri="http://h", warehouse="s3://b/p", s3_sse=asked)
    conf = {name.removeprefix("spark.sql.catalog.lake."): value for name, value in catalog.conf().items()}
    assert {name: value for name, value in conf.items() if "sse" in name} == expected


def test_a_warehouse_in_s3_is_written_by_icebergs_own_client():
    catalog = CatalogOptions(
        type="rest", uri="http://h", warehouse="s3://b/p", s3_endpoint="http://m", s3_path_style=True
    )
    assert catalogs.ICEBERG_AWS_JAR in catalog.packages()
    conf = {name.removeprefix("spark.sql.catalog.lake."): value for name, value in catalog.conf().items()}
    assert conf["io-impl"].endswith("S3FileIO")
    assert conf["s3.endpoint"] == "http://m"
    assert conf["s3.path-style-access"] == "true"
    assert conf["warehouse"] == "s3://b/p"
    assert "token" not in conf
