"""`kafscale config` shows the settings that `kafscale serve` would have."""

from __future__ import annotations

import os
from typing import Any

import click

from kafscale.cli.options import json_option, settings_flags
from kafscale.cli.output import show
from kafscale.config import load, options


@click.command("config")
@click.option("--reference", is_flag=True, help="Print the reference page of all options, as Markdown.")
@json_option
@settings_flags()
def command(as_json: bool, reference: bool, config_file: str | None, **flags: Any) -> None:
    """Show the value of each option and its source.

    Takes the options of `kafscale serve`, reads the same environment and file, and starts nothing.
    """
    if reference:
        from kafscale.cli.reference import options_page

        click.echo(options_page(), nl=False)
        return
    loaded = load(flags, os.environ, config_file)
    rows = [(option.name, option.format(loaded.settings.value(option)), loaded.source(option)) for option in options()]
    show(("option", "value", "source"), rows, as_json=as_json)
