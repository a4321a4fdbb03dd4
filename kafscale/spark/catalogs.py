"""Catalogs as settings of Spark: Iceberg's hadoop, jdbc, rest, hive and glue, and delta, a directory of Delta tables.

The jars that commands give to Spark are pinned here. Spark resolves them (`spark.jars.packages`) from Maven Central or
a mirror; Spark Connect and the Thrift server are part of pip's pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from kafscale.config import StoreEncryption
from kafscale.errors import ConfigError

ICEBERG_VERSION = "1.11.0"
ICEBERG_SPARK = "4.1"  # the newest Spark that this Iceberg is made for
ICEBERG_JAR = f"org.apache.iceberg:iceberg-spark-runtime-{ICEBERG_SPARK}_2.13:{ICEBERG_VERSION}"
ICEBERG_AWS_JAR = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG_VERSION}"  # S3FileIO, with the AWS SDK
DELTA_VERSION = "4.4.0"
DELTA_JAR = f"io.delta:delta-spark_{ICEBERG_SPARK}_2.13:{DELTA_VERSION}"
KAFKA_SOURCE_JAR = "org.apache.spark:spark-sql-kafka-0-10_2.13"  # of the version that pyspark has
SQLITE_JAR = "org.xerial:sqlite-jdbc:3.50.3.0"
POSTGRES_JAR = "org.postgresql:postgresql:42.7.7"


NAME_DEFAULT = "lake"
ICEBERG, DELTA = FORMATS = ("iceberg", "delta")
TYPES = ("hadoop", "jdbc", "rest", "hive", "glue", DELTA)
WITH_URI = ("jdbc", "rest", "hive")  # which can't do without
DRIVERS = {"jdbc:sqlite:": SQLITE_JAR, "jdbc:postgresql:": POSTGRES_JAR}
EXTENSIONS = {
    ICEBERG: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    DELTA: "io.delta.sql.DeltaSparkSessionExtension",
}
DELTA_CATALOG = {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
OF_DELTA = ("type", "name", "warehouse")
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def setting(doc: str, default: Any = attrs.NOTHING, **more: Any) -> Any:
    """Declare a key of a pipeline's YAML, with its line in the reference."""
    return attrs.field(default=default, metadata={"doc": doc}, **more)


@attrs.frozen(kw_only=True)
class CatalogOptions:
    """A catalog of tables. Raises ConfigError, when made, for options that contradict each other."""

    type: str = setting(
        "Of Iceberg: `hadoop` (a directory), `jdbc` (SQLite or Postgres), `rest`, `hive`, or `glue`. Of Delta Lake: "
        "`delta` (a directory)."
    )
    name: str = setting("What tables are found under in Spark's SQL.", NAME_DEFAULT)
    warehouse: str | None = setting(
        "Where tables are: a directory or `s3://BUCKET/PREFIX`. For `rest` it may be the server's.", None
    )
    uri: str | None = setting(
        "Of `jdbc` (`jdbc:sqlite:PATH`, `jdbc:postgresql://HOST/DATABASE`), `rest` and `hive` (`thrift://HOST:PORT`); "
        "of `glue` where it is not Amazon's.",
        None,
    )
    user: str | None = setting("Of the database.", None)
    password: str | None = setting("Of the database.", None, repr=False)
    token: str | None = setting("A bearer token, for `rest`.", None, repr=False)
    credential: str | None = setting("`ID:SECRET`, which `rest` gets a token for.", None, repr=False)
    s3_endpoint: str | None = setting("Where S3 is, for the warehouse.", None)
    s3_region: str | None = setting("Without it, what AWS SDKs find.", None)
    s3_path_style: bool = setting("Whether the bucket is in the path, not in the host's name.", False)
    s3_sse: str | None = setting(
        "How S3 encrypts the tables: `AES256` or `aws:kms:KEY`. Without it, as the bucket is set up.", None
    )
    properties: Mapping[str, str] = setting(
        "Further properties of Iceberg's catalog, as Iceberg names them.", factory=dict
    )

    def __attrs_post_init__(self) -> None:
        if self.type not in TYPES:
            raise ConfigError(f"a catalog's type is one of {', '.join(TYPES)}, not '{self.type}'")
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"a catalog's name is a word of letters, digits and _, not '{self.name}'")
        if self.name == "spark_catalog":
            raise ConfigError("spark_catalog is Spark's own catalog; give the catalog another name")
        if self.type != "rest" and self.warehouse is None:
            raise ConfigError(f"a catalog of type {self.type} needs a warehouse: a directory, or s3://BUCKET/PREFIX")
        if self.type == DELTA:
            self._check_delta()
        if self.type == "hadoop" and self.on_s3:
            raise ConfigError("a hadoop catalog loses commits on S3, which can't rename: use another type there")
        if self.type == "glue" and not self.on_s3:
            raise ConfigError("a glue catalog keeps its tables in S3: its warehouse is s3://BUCKET/PREFIX")
        if self.type in WITH_URI and self.uri is None:
            raise ConfigError(f"a catalog of type {self.type} needs a uri")
        try:
            self._encryption()
        except ValueError as exc:
            raise ConfigError(f"a catalog's s3_sse: {exc}") from exc
        if self.type == "jdbc" and self._driver is None:
            raise ConfigError(f"the uri of a jdbc catalog begins with {' or '.join(DRIVERS)}")  # it may have a password

    def _check_delta(self) -> None:
        if self.on_s3:
            raise ConfigError("Delta Lake writes by Hadoop's file systems, which know S3 as s3a://, by another jar")
        for field in attrs.fields(type(self)):
            if field.name not in OF_DELTA and getattr(self, field.name):
                raise ConfigError(f"a catalog of type {DELTA} has no {field.name}: it is a directory, the warehouse")

    @property
    def format(self) -> str:
        """Return the format of its tables, one of FORMATS."""
        return DELTA if self.type == DELTA else ICEBERG

    @property
    def extensions(self) -> str:
        return EXTENSIONS[self.format]

    @property
    def on_s3(self) -> bool:
        return (self.warehouse or "").startswith("s3://")

    def full_name(self, table: str) -> str:
        """Return the full name of a table, given with its namespace, in Spark's SQL."""
        if self.type == DELTA:
            return f"{DELTA}.{quoted(self.path(table))}"
        return ".".join(quoted(part) for part in [self.name, *table.split(".")])

    def path(self, table: str) -> str:
        return "/".join([(self._warehouse() or "").rstrip("/"), *table.split(".")])

    def uncached(self) -> CatalogOptions:
        """Return the same catalog, which asks anew for tables that other processes commit to."""
        if self.type == DELTA:
            return self  # and does so anyhow
        return attrs.evolve(self, properties={"cache-enabled": "false", **self.properties})

    def packages(self) -> Sequence[str]:
        if self.type == DELTA:
            return [DELTA_JAR]
        on_s3 = self.on_s3 or self.s3_endpoint or self.s3_region or self.s3_sse
        aws = [ICEBERG_AWS_JAR] if on_s3 else []
        driver = [] if self._driver is None else [self._driver]
        return [ICEBERG_JAR, *aws, *driver]

    def conf(self) -> dict[str, str]:
        if self.type == DELTA:
            return {"spark.sql.extensions": self.extensions, **DELTA_CATALOG}
        access: dict[str, str | None] = {"token": self.token, "credential": self.credential}
        if self.type == "jdbc":
            # V1 has views too; without saying so Iceberg warns of it and leaves the tables of an older schema.
            access = {"jdbc.schema-version": "V1", "jdbc.user": self.user, "jdbc.password": self.password}
        location = {"glue.endpoint" if self.type == "glue" else "uri": self.uri, "warehouse": self._warehouse()}
        settings = {"type": self.type, **location, **access, **self._s3(), **self.properties}
        prefix = f"spark.sql.catalog.{self.name}"
        return {
            "spark.sql.extensions": self.extensions,
            prefix: SPARK_CATALOG,
            **{f"{prefix}.{name}": value for name, value in settings.items() if value is not None},
        }

    @property
    def _driver(self) -> str | None:
        if self.type != "jdbc":
            return None
        return next((jar for prefix, jar in DRIVERS.items() if (self.uri or "").startswith(prefix)), None)

    def _warehouse(self) -> str | None:
        if self.warehouse is None or self.type == "rest" or "://" in self.warehouse:
            return self.warehouse
        return str(Path(self.warehouse.removeprefix("file:")).absolute())

    def _s3(self) -> dict[str, str | None]:
        if ICEBERG_AWS_JAR not in self.packages():
            return {}
        return {
            "io-impl": S3_FILE_IO,
            "s3.endpoint": self.s3_endpoint,
            "client.region": self.s3_region,
            "s3.path-style-access": "true" if self.s3_path_style else None,
            **self._encryption(),
        }

    def _encryption(self) -> dict[str, str | None]:
        if self.s3_sse is None:
            return {}
        asked = StoreEncryption.parse(self.s3_sse)
        return {"s3.sse.type": "kms" if asked.key else "s3", "s3.sse.key": asked.key or None}
