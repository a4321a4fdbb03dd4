"""The options that `kafscale sql` and `kafscale sql serve` share, and Spark started as they say."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.options import SPARK_SETTING, Parsed, value_or_file
from kafscale.cli.serve import settings_flags
from kafscale.config import Settings, load, parse_size
from kafscale.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from kafscale.spark.catalogs import CatalogOptions

Function = Callable[..., Any]

PREFIX = "KAFSCALE_SQL_"
STORE_OPTIONS = ("data_dir", "store", "namespace", "s3_endpoint", "s3_region", "s3_path_style", "s3_ca_file")
MASTER_DEFAULT = "local[*]"
MAX_SCAN_DEFAULT = "10GiB"  # that of KAFSQL
VALUE_FORMATS = ("avro", "protobuf", "json")


@attrs.frozen(kw_only=True)
class SparkOptions:
    """What Spark is started with, and what is read of topics by default."""

    master: str
    conf: Sequence[tuple[str, str]]
    catalogs: Sequence[CatalogOptions]
    max_scan_bytes: int
    value_format: str | None
    registry: str | None
    source_options: Sequence[tuple[str, str]]


def option(flag: str, *names: str, help: str, shown: str = "", **details: Any) -> Callable[[Function], Function]:
    """An option that is a variable too, both named in its help."""
    variable = PREFIX + flag.removeprefix("--").upper().replace("-", "_")
    told = f"default: {shown}; {variable}" if shown else variable
    return click.option(flag, *names, envvar=variable, help=f"{help}  [{told}]", **details)


def parse_catalog(text: str) -> CatalogOptions:
    """Read KEY=VALUE,KEY=VALUE, by the names of `CatalogOptions`, with dashes for underscores. Raises ValueError."""
    from kafscale.spark.catalogs import TYPES, CatalogOptions

    fields = {field.name for field in attrs.fields(CatalogOptions)} - {"properties"}
    given: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        name = key.strip().replace("-", "_")
        if name not in fields or not value:
            allowed = ", ".join(sorted(each.replace("_", "-") for each in fields))
            raise ValueError(  # without the value, which may be a secret
                f"'{key}' is not a setting of a catalog; allowed: KEY=VALUE with commas between, of {allowed}"
            )
        given[name] = value.strip().lower() == "true" if name == "s3_path_style" else value_or_file(value.strip())
    if "type" not in given:
        raise ValueError(f"'{text}' has no type; allowed: type={', type='.join(TYPES)}")
    return CatalogOptions(**given)


_OPTIONS = (
    option(
        "--master",
        default=MASTER_DEFAULT,
        shown=MASTER_DEFAULT,
        metavar="URL",
        help="Spark's master; embedded without it.",
    ),
    option(
        "--catalog",
        "catalogs",
        type=Parsed("KEY=VALUE,…", parse_catalog),
        multiple=True,
        help="A catalog of Iceberg tables, as name=lake,type=hadoop,warehouse=/data/lake; repeatable. "
        "password=@PATH and the like read a file.",
    ),
    option(
        "--conf", type=SPARK_SETTING, multiple=True, help="A setting of Spark; NAME=@PATH reads a file; repeatable."
    ),
    option(
        "--max-scan-bytes",
        type=Parsed("SIZE", parse_size),
        default=MAX_SCAN_DEFAULT,
        shown=MAX_SCAN_DEFAULT,
        help="A read of a topic that would take more of the bucket is refused before it begins; 0 for no limit.",
    ),
    option(
        "--value-format",
        type=click.Choice(VALUE_FORMATS),
        help="Values begin with the id of their schema in --registry: there is a column decoded, of value and error.",
    ),
    option("--registry", metavar="URL", help="The schema registry; several with commas between."),
    option(
        "--option",
        "source_options",
        type=SPARK_SETTING,
        multiple=True,
        help="An option of Spark's reader for all topics, such as includeHeaders=true; NAME=@PATH reads a file; "
        "repeatable.",
    ),
)


def spark_options(function: Function) -> Function:
    """Give a command the options of the store, of `SparkOptions`, and `--config`."""
    for each in reversed(_OPTIONS):
        function = each(function)
    return settings_flags(only=STORE_OPTIONS)(function)


def read_settings(flags: dict[str, Any], config_file: str | None) -> Settings:
    """Return where the bucket is. Raises ConfigError."""
    return load(flags, os.environ, config_file).settings


def source_options(settings: Settings, options: SparkOptions) -> dict[str, str]:
    """Return the options of `format("kafscale")`. Raises ConfigError."""
    if (options.value_format is None) != (options.registry is None):
        raise ConfigError("--value-format and --registry belong together; allowed: both, or neither")
    chosen = {**store_options(settings), "valueFormat": options.value_format, "schemaRegistryUrl": options.registry}
    return {**{name: value for name, value in chosen.items() if value is not None}, **dict(options.source_options)}


def store_options(settings: Settings) -> dict[str, str]:
    """Return those of the options of `format("kafscale")` that say where the bucket is."""
    store = settings.store
    if store.scheme == "file" and store.path is not None:
        store = attrs.evolve(store, path=store.path.absolute())
    chosen = {
        "store": str(store),
        "namespace": settings.namespace,
        "s3Endpoint": settings.s3_endpoint,
        "s3Region": settings.s3_region,
        "s3PathStyle": "true" if settings.s3_path_style else None,
        "s3CaFile": None if settings.s3_ca_file is None else str(settings.s3_ca_file.absolute()),
    }
    return {name: value for name, value in chosen.items() if value is not None}


@contextmanager
def spark_session(options: SparkOptions, *, app_name: str, **conf: str) -> Iterator[SparkSession]:
    """Stopped at the end of the block. conf: of the command, before those of the user. Raises StartupError."""
    from kafscale.spark.session import SessionOptions, start_session
    from kafscale.spark.sql.failures import keep_pyspark_quiet

    session = start_session(
        SessionOptions(
            master=options.master, app_name=app_name, conf={**conf, **dict(options.conf)}, catalogs=options.catalogs
        )
    )
    keep_pyspark_quiet()
    try:
        yield session
    finally:
        session.stop()


def scan_limit(options: SparkOptions) -> int | None:
    """Return how many bytes a scan may read; None for no limit."""
    return options.max_scan_bytes or None
