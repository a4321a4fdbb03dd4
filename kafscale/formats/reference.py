"""The reference page of the formats on disk and in the bucket, made from the docstrings of the modules that write them.

    python -m kafscale.formats.reference > docs/reference/formats.md

A test holds the committed page to the code.
"""

from __future__ import annotations

import inspect
from types import ModuleType

from kafscale.formats import (
    log_end,
    manifest_checkpoint,
    metadata_changes,
    metadata_checkpoint,
    metadata_head,
    placements,
    segment,
    segment_v1,
    transactions,
    wal_entries,
    wal_index,
    wal_objects,
)
from kafscale.store import paths
from kafscale.wire import batch_header

_INTRODUCTION = """\
# Formats

Made by `python -m kafscale.formats.reference`; what is changed are the modules named below. `kafscale inspect` prints
and verifies each of them.

A reader accepts every version that was ever written; of checkpoints only those below.
"""

_SECTIONS: tuple[tuple[str, ModuleType], ...] = (
    ("Keys", paths),
    ("Segments", segment),
    ("Transactions in a footer", transactions),
    ("Segments, version 1", segment_v1),
    ("Write-ahead log", wal_entries),
    ("Write-ahead log in the bucket", wal_objects),
    ("The index of such an object", wal_index),
    ("Checkpoints of the manifests", manifest_checkpoint),
    ("The log's end in such a checkpoint", log_end),
    ("Checkpoints of the metadata", metadata_checkpoint),
    ("The transaction in such a checkpoint", metadata_changes),
    ("Metadata that several brokers share", metadata_head),
    ("Who leads what, in that metadata", placements),
    ("Record batches", batch_header),
)


def formats_page() -> str:
    return _INTRODUCTION + "".join(
        f"\n## {title}\n\n`{module.__name__}`\n\n```\n{inspect.getdoc(module)}\n```\n" for title, module in _SECTIONS
    )


if __name__ == "__main__":
    print(formats_page(), end="")
