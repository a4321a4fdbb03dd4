"""`kafscale serve`: flags to Settings to the broker, which prints the line that says it is ready."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Container
from typing import Any

import click

from kafscale.cli.logs import configure_logging
from kafscale.config import CONFIG_VARIABLE, Option, Settings, load, options

Function = Callable[..., Any]


def settings_flags(*, only: Container[str] | None = None) -> Callable[[Function], Function]:
    """Give a command `--config` and a flag for every option of the settings, or for those with these attributes.

    All values stay text here: one parser, in `kafscale.config`, reads flags, environment and file alike.
    """

    def decorate(function: Function) -> Function:
        defaults = Settings()
        for each in reversed(options()):
            if only is None or each.attribute in only:
                function = _flag(each, each.format(defaults.value(each)))(function)
        help_text = f"TOML file of options, named as their flags without the dashes.  [{CONFIG_VARIABLE}]"
        return click.option("--config", "config_file", metavar="FILE", help=help_text)(function)

    return decorate


def _flag(each: Option, default: str) -> Callable[[Function], Function]:
    shown_default = f"default: {default}; " if default else ""
    help_text = f"{each.help.text}  [{shown_default}{each.variable}]"
    if each.is_switch:
        # A value may be given (`--auto-create-topics=false`), and alone it means true.
        return click.option(
            each.flag, each.attribute, is_flag=False, flag_value="true", metavar=f"[{each.form}]", help=help_text
        )
    return click.option(each.flag, each.attribute, multiple=each.is_repeatable, metavar=each.form, help=help_text)


@click.command("serve")
@settings_flags()
def command(config_file: str | None, **flags: Any) -> None:
    """Run the broker.

    Every option is also an environment variable (in brackets) and a key of the TOML file; a flag beats the environment,
    which beats the file. Sizes take units (64MiB, 1GB), durations need one (2ms, 10s, 5m).
    """
    settings = load(flags, os.environ, config_file).settings
    configure_logging(settings.log_level, settings.log_format)
    # Nothing of an import is garbage, and looking for it among all that is made takes a tenth of the start.
    gc.disable()
    # Imported only now: a wrong option is told without the time that the broker's modules take.
    import trio

    from kafscale import serving
    from kafscale.log.wal.data_directory import keep_files_private

    gc.enable()
    keep_files_private()
    trio.run(serving.serve, settings)
