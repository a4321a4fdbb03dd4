"""`kafscale serve`: flags to Settings to the broker, or to several, and then the line that says all are ready."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Container
from typing import Any

import click

from kafscale.cli.logs import configure_logging
from kafscale.config import CONFIG_VARIABLE, SUPERVISOR_VARIABLE, Loaded, Option, Settings, load, options
from kafscale.errors import DeclaredDead

ANEW_CODE = 3  # of a broker that its supervisor is to start anew, on the ports that it has had

logger = logging.getLogger(__name__)

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
def command(config_file: str | None, **flags: Any) -> int:
    """Run the broker, or several with --processes. One that the others have declared dead starts anew.

    Every option is also an environment variable (in brackets) and a key of the TOML file; a flag beats the environment,
    which beats the file. Sizes take units (64MiB, 1GB), durations need one (2ms, 10s, 5m).
    """
    supervisor_pid = os.environ.get(SUPERVISOR_VARIABLE)
    if supervisor_pid is not None:
        from kafscale.supervisor.process import end_with

        end_with(int(supervisor_pid))
    loaded = load(flags, os.environ, config_file)
    configure_logging(loaded.settings.log_level, loaded.settings.log_format)
    if loaded.settings.processes_count > 1:
        return _supervise(loaded)
    is_declared_dead = _run(loaded.settings)
    if is_declared_dead and supervisor_pid is None:
        os.execv(sys.executable, sys.orig_argv)  # as the same process, for whoever watches over it
    return ANEW_CODE if is_declared_dead else 0


def _supervise(loaded: Loaded) -> int:
    import trio

    from kafscale.supervisor import supervisor

    return trio.run(supervisor.serve, loaded, loaded.settings.processes_count)


def _run(settings: Settings) -> bool:
    """Run the broker; True if it is to start anew, as the others have declared it dead."""
    # Nothing of an import is garbage, and looking for it among all that is made takes a tenth of the start.
    gc.disable()
    # Imported only now: a wrong option is told without the time that the broker's modules take.
    import trio

    from kafscale import serving
    from kafscale.concurrency.nurseries import leaves
    from kafscale.log.wal.data_directory import keep_files_private

    gc.enable()
    keep_files_private()
    is_declared_dead = False
    try:
        trio.run(serving.serve, settings)
    except* DeclaredDead as declared:
        logger.warning("%s; this one starts anew", next(leaves(declared)))
        is_declared_dead = True
    return is_declared_dead
