"""What is decided of a batch: which transactions of which tasks it is. A value, and a record's text.

The text is JSON, so that `kafka-console-consumer` shows what a query was at:

    version       1
    batch         the number of the last batch that was decided; of writes that are no stream, how many there were
    run           whose decision it is: an execution of the query, or one write
    former        the runs before, which may not decide any more; the last few of them
    unfinished    the transactions that are still to be committed, empty when the batch is whole
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from kafscale.errors import KafkaError
from kafscale.wire import error_codes

VERSION: Final = 1
FORMER_MAX_COUNT: Final = 8  # a run that even older ones fence is told by the number of its batch


@attrs.frozen(kw_only=True)
class Span:
    """Where the records of a transaction are in one partition: `count` of them, among offsets from first to last."""

    topic: str
    partition: int
    first: int
    last: int
    count: int


@attrs.frozen(kw_only=True)
class Prepared:
    """The transaction of one task: all of its records are acknowledged, and it is open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    spans: tuple[Span, ...]


@attrs.frozen(kw_only=True)
class Decision:
    """The last batch of a query that was decided."""

    batch: int
    run: str
    former: tuple[str, ...] = ()
    unfinished: tuple[Prepared, ...] = ()

    def followed_by(self, run: str) -> tuple[str, ...]:
        """The former runs, as the next decision of this run has them."""
        return self.former if run == self.run else (self.run, *self.former)[:FORMER_MAX_COUNT]

    def to_text(self) -> bytes:
        return json.dumps({"version": VERSION, **attrs.asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def of_text(cls, text: bytes) -> Decision:
        """Raises KafkaError for what this version did not write."""
        try:
            document = json.loads(text)
            if document.pop("version") != VERSION:
                raise ValueError("it is of a newer version")
            unfinished = tuple(
                Prepared(**{**each, "spans": tuple(Span(**span) for span in each["spans"])})
                for each in document.pop("unfinished")
            )
            return cls(**{**document, "former": tuple(document["former"])}, unfinished=unfinished)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            code = error_codes.INVALID_RECORD
            raise KafkaError(code, f"a record of kafscale-spark-transactions can't be read: {exc}") from exc
