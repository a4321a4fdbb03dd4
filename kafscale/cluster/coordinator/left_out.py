"""Records of internal partitions that can't be read: left out, told of in one line for each reading, and counted.

Kafka passes over records of types that it does not know, which may be left over from an upgrade that was taken back;
so do those who keep the state of a partition here. One of a known type that it can't read has it give up the whole
partition of `__consumer_offsets`, so that no group of it has a coordinator, and of `__transaction_state` all that comes
behind it. Here the record alone is left out: what was said under the same key before holds, and a later one counts.
"""

from __future__ import annotations

import attrs


@attrs.define(eq=False, repr=False)
class LeftOut:
    """What one reading of a partition has left out; `first` says what, and where."""

    count: int = 0
    first: str = ""

    def note(self, offset: int, reason: Exception, count: int = 1) -> None:
        """Know that so many records, from this offset on, can't be read."""
        if not self.count:
            self.first = f"offset {offset}: {reason}"
        self.count += count
