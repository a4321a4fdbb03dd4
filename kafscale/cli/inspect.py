"""`kafscale inspect`: print and verify a segment, an index or a file of the WAL, on disk or in the bucket."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.connecting import json_option
from kafscale.cli.output import show, show_json
from kafscale.cli.serve import settings_flags
from kafscale.config import Settings, StoreUrl, load
from kafscale.errors import DamagedObject, NotFound

if TYPE_CHECKING:
    from kafscale.cli.inspection import Inspection
    from kafscale.store.base import ObjectStore

_STORE_OPTIONS = ("data_dir", "store", "s3_endpoint", "s3_region", "s3_path_style", "s3_ca_file")


@click.command("inspect")
@click.argument("name", metavar="FILE-OR-KEY")
@click.option("--batches", "with_batches", is_flag=True, help="List every record batch.")
@json_option
@settings_flags(only=_STORE_OPTIONS)
def command(name: str, with_batches: bool, as_json: bool, config_file: str | None, **flags: Any) -> None:
    """Print and verify a segment (.kfs), its .index, or a file of the write-ahead log.

    FILE-OR-KEY is a path, or else a key in the store that `kafscale serve` would use with the same options. Exits with
    1 if anything in it is damaged.
    """
    from kafscale.cli.inspection import inspect

    settings = load(flags, os.environ, config_file).settings
    path = Path(name)
    found = inspect(path.read_bytes() if path.is_file() else _read_object(settings, name), name)
    _show(found, name, with_batches=with_batches, as_json=as_json)
    if found.damage:
        raise DamagedObject(
            f"{name}: {found.damage[0]}" + (f" (and {len(found.damage) - 1} more)" * bool(found.damage[1:]))
        )


def _show(found: Inspection, name: str, *, with_batches: bool, as_json: bool) -> None:
    from kafscale.cli.inspection import Fact

    if as_json:
        document: dict[str, Any] = {"name": name, "kind": found.kind, "whole": not found.damage, "damage": found.damage}
        document |= {fact.name.replace(" ", "_").lower(): fact.value for fact in found.facts}
        if with_batches:
            document["rows"] = [attrs.asdict(row) for row in found.rows]
        show_json(document)
        return
    show(Fact, [Fact("kind", found.kind), *found.facts])
    if with_batches:
        click.echo()
        show(found.row_class, found.rows)
    click.echo()
    for line in found.damage:
        click.echo(f"damaged: {line}")
    if not found.damage:
        checked = f"; batches: {len(found.rows)}" if found.rows else ""
        click.echo(f"whole: every checksum is right{checked}")


def _read_object(settings: Settings, key: str) -> bytes:
    import trio

    async def read() -> bytes:
        async with _open_store(settings) as store:
            return bytes((await store.get(key)).data)

    try:
        return trio.run(read)
    except (NotFound, ValueError) as exc:
        raise NotFound(f"{key}: neither a file nor a key in {settings.store}") from exc


@asynccontextmanager
async def _open_store(settings: Settings) -> AsyncIterator[ObjectStore]:
    """The store to read one object from: no limiter, no retries."""
    url: StoreUrl = settings.store
    if url.scheme == "s3":
        from kafscale.store.s3 import S3Settings, S3Store

        store = S3Store(
            S3Settings(
                bucket=url.bucket,
                prefix=url.prefix,
                endpoint=settings.s3_endpoint,
                region=settings.s3_region,
                path_style=settings.s3_path_style,
                ca_file=str(settings.s3_ca_file) if settings.s3_ca_file else None,
            )
        )
        try:
            yield store
        finally:
            await store.aclose()
    elif url.scheme == "file" and url.path.is_dir():
        from kafscale.store.file import FileStore

        yield await FileStore.open(url.path)
    else:
        raise NotFound(f"{url} is nothing to read from")
