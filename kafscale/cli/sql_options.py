"""Options that `kafscale sql` and `kafscale sql serve` share, and the Spark session that they describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.options import BUCKET_OPTIONS, SPARK_SETTING, Parsed, value_or_file, with_settings
from kafscale.config import Settings, parse_size
from kafscale.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from kafscale.spark.catalogs import CatalogOptions

Function = Callable[..., Any]

PREFIX = "KAFSCALE_SQL_"
MASTER_DEFAULT = "local[*]"
MAX_SCAN_DEFAULT = "10GiB"  # as KAFSQL has it
VALUE_FORMATS = ("avro", "protobuf", "json")


@attrs.frozen(kw_only=True)
class SparkOptions:
    """Options of Spark, and defaults for reading topics."""

    master: str
    conf: Sequence[tuple[str, str]]
    catalogs: Sequence[CatalogOptions]
    max_scan_bytes: int
    value_format: str | None
    registry: str | None
    source_options: Sequence[tuple[str, str]]


def option(flag: str, *names: str, help: str, shown: str = "", **details: Any) -> Callable[[Function], Function]:
    """Declare an option that is also an environment variable, which its help names."""
    variable = PREFIX + flag.removeprefix("--").upper().replace("-", "_")
    note = f"default: {shown}; {variable}" if shown else variable
    return click.option(flag, *names, envvar=variable, help=f"{help}  [{note}]", **details)


def parse_catalog(text: str) -> CatalogOptions:
    """Read KEY=VALUE,KEY=VALUE, by the names of `CatalogOptions`, with dashes for underscores. Raises ValueError."""
    from kafscale.spark.catalogs import TYPES, CatalogOptions

    fields = {field.name for field in attrs.fields(CatalogOptions)} - {"properties"}
    given: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        name = key.strip().replace("-", "_")
        if name not in fields or not value:
            allowed = ", ".join(sorted(name.replace("_", "-") for name in fields))
            raise ValueError(  # doesn't repeat the value, which may be a secret
                f"'{key}' is not a setting of a catalog; allowed: KEY=VALUE, separated by commas, with the keys "
                f"{allowed}"
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
        help="Spark's master.",
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
        help="Refuse a read of a topic that needs more bytes of the bucket; 0 for no limit.",
    ),
    option(
        "--value-format",
        type=click.Choice(VALUE_FORMATS),
        help="Format of values that begin with a schema id of --registry. Adds a column decoded, with value and error.",
    ),
    option("--registry", metavar="URL", help="Schema registry; several separated by commas."),
    option(
        "--option",
        "source_options",
        type=SPARK_SETTING,
        multiple=True,
        help="Option of Spark's reader for all topics, such as includeHeaders=true; NAME=@PATH reads a file; "
        "repeatable.",
    ),
)


def spark_options(function: Function) -> Function:
    """Give a command the options of the store and of `SparkOptions`, and `--config`."""
    for add_option in reversed(_OPTIONS):
        function = add_option(function)
    return with_settings(only=("data_dir", *BUCKET_OPTIONS))(function)


def source_options(settings: Settings, options: SparkOptions) -> dict[str, str]:
    """Return the options of `format("kafscale")`. Raises ConfigError."""
    if (options.value_format is None) != (options.registry is None):
        raise ConfigError("--value-format and --registry belong together; give both or neither")
    chosen = {**store_options(settings), "valueFormat": options.value_format, "schemaRegistryUrl": options.registry}
    return {**{name: value for name, value in chosen.items() if value is not None}, **dict(options.source_options)}


def store_options(settings: Settings) -> dict[str, str]:
    """Return the options of `format("kafscale")` for the bucket."""
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
    """Give a session that stops at the end. `conf` has the command's settings; the user's win. Raises StartupError."""
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
    """Return the most bytes that a scan may read; None for no limit."""
    return options.max_scan_bytes or None
