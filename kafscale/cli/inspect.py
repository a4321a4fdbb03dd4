"""`kafscale inspect`: print and check an object that KafScale writes, or a file of the write-ahead log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.options import json_option, with_settings
from kafscale.cli.output import say, show, show_json
from kafscale.config import BUCKET_OPTIONS, Loaded, Settings
from kafscale.errors import DamagedObject, NotFound

if TYPE_CHECKING:
    from kafscale.cli.inspection import Inspection


@click.command("inspect")
@click.argument("name", metavar="FILE-OR-KEY")
@click.option("--batches", "with_rows", is_flag=True, help="List all record batches, or the entries of a checkpoint.")
@click.option(
    "--transactions",
    "with_transactions",
    is_flag=True,
    help="List the transactions in a segment's footer: aborted ones, and those open at its end.",
)
@json_option
@with_settings(only={"data_dir", *BUCKET_OPTIONS} - {"namespace"})
def command(name: str, *, with_rows: bool, with_transactions: bool, as_json: bool, loaded: Loaded) -> None:
    """Print and check an object or file.

    It may be a segment (.kfs), its .index, an object of the write-ahead log (.wal), a checkpoint of the metadata, the
    claim of a leader (epoch), or a file of the local write-ahead log.

    FILE-OR-KEY is a path, or a key in the store that `kafscale serve` uses with the same options. The exit code is 1 if
    anything is damaged.
    """
    from kafscale.cli.inspection import inspect

    data = _read_file(name)
    found = inspect(_read_object(loaded.settings, name) if data is None else data, name)
    _show(found, name, with_rows=with_rows, with_transactions=with_transactions, as_json=as_json)
    if found.damage:
        raise DamagedObject(
            f"{name}: {found.damage[0]}" + (f" (and {len(found.damage) - 1} more)" * bool(found.damage[1:]))
        )


def _show(found: Inspection, name: str, *, with_rows: bool, with_transactions: bool, as_json: bool) -> None:
    from kafscale.cli.inspection import Fact

    transactions: dict[str, Sequence[attrs.AttrsInstance]] = {}
    if with_transactions:
        transactions = {"aborted": found.aborted, "open": found.open}
    if as_json:
        document: dict[str, Any] = {"name": name, "kind": found.kind, "whole": not found.damage, "damage": found.damage}
        document |= {fact.name.replace(" ", "_").lower(): fact.value for fact in found.facts}
        if with_rows:
            document["rows"] = [*map(attrs.asdict, found.rows)]
        document |= {kind: [*map(attrs.asdict, rows)] for kind, rows in transactions.items()}
        show_json(document)
        return
    show(Fact, [Fact("kind", found.kind), *found.facts])
    if with_rows:
        click.echo()
        show(found.row_class, found.rows)
    for kind, rows in transactions.items():
        click.echo(f"\n{kind}:{'' if rows else ' none'}")
        if rows:
            show(type(rows[0]), rows)
    click.echo()
    for line in found.damage:
        say(f"damaged: {line}")
    if not found.damage:
        checked = f"; {'entries' if found.kind == 'checkpoint' else 'batches'}: {len(found.rows)}" if found.rows else ""
        click.echo(f"whole: every checksum is correct{checked}")


def _read_file(name: str) -> bytes | None:
    try:
        return Path(name).read_bytes() if Path(name).is_file() else None
    except OSError as exc:
        raise click.ClickException(f"{name} can't be read: {exc.strerror}") from exc


def _read_object(settings: Settings, key: str) -> bytes:
    import trio

    from kafscale.store.opening.opening import open_raw_store

    if settings.store.scheme == "file" and not settings.store.path.is_dir():
        raise NotFound(f"{key}: neither a file nor a key in {settings.store}")

    async def read() -> bytes:
        async with aclosing(await open_raw_store(settings)) as store:
            return bytes((await store.get(key)).data)

    try:
        return trio.run(read)
    except (NotFound, ValueError) as exc:
        raise NotFound(f"{key}: neither a file nor a key in {settings.store}") from exc
