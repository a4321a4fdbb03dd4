"""The conditions of all uses of one `load()`, so that what is left out is needed by none of them.

Spark (4.1 to 4.3) gives a source in Python the conditions of each scan of a `load()`, and then has all of those scans
read what the last of them was told. A statement may have more scans than it names tables: a common table expression
that is used twice, a correlated subquery, MERGE. So each scan's bounds are noted in a file of the `load()`, and what is
planned is wide enough for all that are there. Scans without a condition are not told of: there must be one in each.

The file is on the driver's machine, where Spark runs each call of a source that plans in a process of its own.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

import attrs

from kafscale.spark.bucket.times import Period
from kafscale.spark.source.bounds import Bounds


@attrs.frozen
class Uses:
    """The uses of one `load()`, noted in a file that is made with the first one."""

    path: Path

    def note(self, bounds: Bounds) -> Bounds:
        """Add those of one more scan. Gives bounds that are wide enough for all so far."""
        with self.path.open("a+", encoding="utf-8") as file:
            file.write(json.dumps(attrs.asdict(bounds), default=sorted) + "\n")
            file.seek(0)
            for line in file:
                noted = json.loads(line)
                bounds = bounds.either(Bounds(**{**noted, "period": Period(**noted["period"])}))
        return bounds


def forget(directory: Path, older_than_seconds: float) -> None:
    """Delete what was noted before then."""
    oldest = time.time() - older_than_seconds
    for path in directory.iterdir():
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()
