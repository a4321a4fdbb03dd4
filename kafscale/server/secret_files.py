"""Warns at the start of files of secrets that other users may read.

The group's right counts only if the broker's user owns the file: a broker reads a file of another owner by its group.
"""

from __future__ import annotations

import logging
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from kafscale.config import Settings

logger = logging.getLogger(__name__)


def warn_of_readable(settings: Settings, *, key_file: Path) -> None:
    """Warn of files of secrets that other users may read. `key_file` has the keys of passwords."""
    own: list[str] = []
    foreign: list[str] = []
    shown: list[str] = []
    for path, status in _readable(_secret_files(settings, key_file)):
        shown.append(f"{path} ({stat.S_IMODE(status.st_mode):04o})")
        (own if status.st_uid == os.geteuid() else foreign).append(str(path))
    if shown:
        commands = [shlex.join(["chmod", *paths]) for paths in (["go=", *own], ["o=", *foreign]) if len(paths) > 1]
        logger.warning(
            "others on this machine may read what is secret in %s; `%s` keeps them from it",
            ", ".join(shown),
            " && ".join(commands),
        )


def _secret_files(settings: Settings, key_file: Path) -> Iterator[Path]:
    ssl = settings.ssl
    paths = (
        ssl.ssl_key_file or ssl.ssl_certificate_file,  # which then has the key, too
        ssl.ssl_key_password_file,
        key_file,
        settings.admin_token_file,
    )
    return (path for path in dict.fromkeys(paths) if path is not None)


def _readable(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the existing files that others may read. A missing file is reported where it is needed."""
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        rights = stat.S_IROTH | (stat.S_IRGRP if status.st_uid == os.geteuid() else 0)
        if stat.S_ISREG(status.st_mode) and status.st_mode & rights:
            yield path, status
