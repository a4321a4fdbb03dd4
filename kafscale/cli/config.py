"""`kafscale config`: each effective value and where it came from; or the reference page of all options."""

from __future__ import annotations

import os
from typing import Any

import attrs
import click

from kafscale.cli.output import show
from kafscale.cli.reference import options_page
from kafscale.cli.serve import settings_flags
from kafscale.config import load, options


@attrs.frozen(kw_only=True)
class Row:
    """One option as it is in effect."""

    option: str
    value: str
    source: str


@click.command("config")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--reference", is_flag=True, help="Print the reference page of all options, as Markdown.")
@settings_flags()
def command(as_json: bool, reference: bool, config_file: str | None, **flags: Any) -> None:
    """Show each option's effective value and where it comes from.

    Takes the options of `kafscale serve`, reads the same environment and file, and starts nothing.
    """
    if reference:
        click.echo(options_page(), nl=False)
        return
    loaded = load(flags, os.environ, config_file)
    rows = [
        Row(option=each.name, value=each.format(loaded.settings.value(each)), source=loaded.source(each))
        for each in options()
    ]
    show(Row, rows, as_json=as_json)
