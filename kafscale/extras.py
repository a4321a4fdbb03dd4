"""Optional packages: the error for a missing one names its extra, and a command that installs it into this environment.

The command installs KafScale from the same place again, as pip, uv and pipx record it: a wheel, a clone, or an index.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kafscale.errors import StartupError


def missing_extra(extra: str, exc: ImportError, *, what: str = "this command") -> StartupError:
    """Return the error to raise for `exc`, the failed import of a package that `extra` installs."""
    return StartupError(f"{what} needs {exc.name}, which the extra `{extra}` has: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the shell command that adds an extra to the environment of this process."""
    place, is_editable = _installed_from()
    wanted = shlex.quote(f"{place}[{extra}]")
    python = shlex.quote(sys.executable)
    if Path(sys.prefix, "pipx_metadata.json").exists():
        return f"pipx install --force {wanted}"
    if Path(sys.prefix, "uv-receipt.toml").exists():
        return f"uv tool install {wanted}"
    if find_spec("pip") is not None:
        return f"{python} -m pip install {'--editable ' if is_editable else ''}{wanted}"
    if Path(sys.prefix).parent.name.startswith("archive-v"):  # uv's cache: an environment that uvx made for one command
        return f"uvx --from {wanted} kafscale"
    return f"uv pip install --python {python} {'--editable ' if is_editable else ''}{wanted}"


def _installed_from() -> tuple[str, bool]:
    """Return the wheel, directory or name that this was installed from, and True if it is an editable install."""
    try:
        recorded = json.loads(metadata.distribution("kafscale").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        recorded = {}
    url = urlsplit(recorded.get("url", ""))
    path = Path(unquote(url.path))
    if url.scheme != "file" or not path.exists():
        return "kafscale", False
    return str(path), bool(recorded.get("dir_info", {}).get("editable"))
