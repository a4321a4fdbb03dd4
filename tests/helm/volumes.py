"""Mounted Secrets and ConfigMaps, in the layout that a kubelet gives them.

Each file is a link to `..data/FILE`, and `..data` is a link to a directory of one version. An update writes another
directory and replaces the one link, so that all files change at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CURRENT = "..data"


def mount(directory: Path, contents: Mapping[str, str]) -> None:
    """Write the files, or replace them by a later version."""
    directory.mkdir(parents=True, exist_ok=True)
    version = directory / f"..version-{len(list(directory.glob('..version-*')))}"
    version.mkdir()
    for name, text in contents.items():
        file = version / name
        file.write_text(text)
        file.chmod(0o440)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"{CURRENT}/{name}")
    link = directory / "..next"
    link.symlink_to(version.name)
    link.rename(directory / CURRENT)
