"""`kafscale serve --processes N` with stubs in the place of brokers: `python supervised_stubs.py N OPTION…`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import trio

from kafscale.cli.options import settings_flags
from kafscale.cli.serve import configure_logging
from kafscale.config import load
from kafscale.supervisor import supervisor

STUB = str(Path(__file__).with_name("stub.py"))


@click.command()
@click.argument("count", type=int)
@settings_flags()
def main(count: int, config_file: str | None, **flags: Any) -> None:
    loaded = load(flags, os.environ, config_file)
    configure_logging(loaded.settings.log_level, loaded.settings.log_format)
    sys.exit(trio.run(supervisor.serve, loaded, count, (sys.executable, STUB)))


if __name__ == "__main__":
    main()
