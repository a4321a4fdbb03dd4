"""The parts of a run of `bench.peers`: loads, targets, and where it is written: without TLS, or with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from bench.peers import page, targets
from bench.peers.journal import FILE_NAME, Findings
from bench.peers.load import Load
from bench.peers.loads import all_loads
from bench.peers.targets import Target
from bench.peers_tls import page as tls_page
from bench.peers_tls import targets as tls_targets


@attrs.frozen(kw_only=True)
class Comparison:
    """The loads, what must be reached under them, and the journal's file and the page of it."""

    loads: Sequence[Load]
    targets: Sequence[Target]
    file_name: str
    write_page: Callable[[Findings, Path], Path]


def comparison(*, is_secured: bool) -> Comparison:
    """Return what is compared without TLS, or with it."""
    if is_secured:
        return Comparison(
            loads=tls_targets.loads(),
            targets=tls_targets.TARGETS,
            file_name=tls_page.FILE_NAME,
            write_page=tls_page.write_page,
        )
    return Comparison(loads=all_loads(), targets=targets.TARGETS, file_name=FILE_NAME, write_page=page.write_page)
