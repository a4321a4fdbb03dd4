"""Check the transactions in a segment's footer against its batches and against the footer of the segment before it.

    an aborted transaction          has its marker at the given offset
    a batch of a transaction        is committed by a later marker, or in the footer as aborted or open
    an open transaction             begins with its first batch, and no marker follows
    open at the end before          is still open, or was ended by a marker here

Sans-IO; yields faults as sentences. Compaction removes batches and markers, so less can be checked then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import attrs

from kafscale.errors import KafkaError
from kafscale.formats.segment import Footer
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import parse_marker

Key = tuple[int, int]  # producer id, first offset


@attrs.frozen
class Told:
    """The facts of a segment that the next one is checked against.

    `first_markers`: by producer, whether its first marker here committed; None if compaction has emptied it.
    """

    base_offset: int
    aborted: Collection[Key]
    open: Collection[Key]
    first_markers: Mapping[int, bool | None]
    has_holes: bool

    def going_on(self, before: Told) -> Iterator[str]:
        """Yield faults at the begin of this segment, which adjoins the one `before`."""
        for producer_id, first_offset in () if self.has_holes else before.open:
            key = (producer_id, first_offset)
            if key in self.open or key in self.aborted:
                continue
            what = f"the transaction of producer {producer_id} from offset {first_offset} on, open at the end before"
            if producer_id not in self.first_markers:
                yield f"{what}, has no marker here, and the footer does not tell that it is open"
            elif self.first_markers[producer_id] is False:
                yield f"{what}, was aborted by a marker here, and the footer does not tell"
        for kind, told in (("open", self.open), ("aborted", self.aborted)):
            for producer_id, first_offset in told:
                if first_offset < self.base_offset and (producer_id, first_offset) not in before.open:
                    yield (
                        f"the footer tells of an {kind} transaction of producer {producer_id} from offset "
                        f"{first_offset} on, and the segment before does not"
                    )


@attrs.frozen
class _Begun:
    first_offset: int
    epoch: int


@attrs.frozen
class _Marked:
    """A marker, and the begin of its transaction, if that has a batch here."""

    producer_id: int
    is_commit: bool
    first_offset: int | None


@attrs.define(eq=False, repr=False)
class TransactionCheck:
    """Takes the batches of a segment in order, and then its footer."""

    _begun: dict[int, _Begun] = attrs.field(factory=dict, init=False)  # and not ended, by producer
    _markers: dict[int, _Marked] = attrs.field(factory=dict, init=False)  # by offset
    _first_markers: dict[int, bool | None] = attrs.field(factory=dict, init=False)
    _last_markers: dict[int, int] = attrs.field(factory=dict, init=False)  # their offsets
    _damage: list[str] = attrs.field(factory=list, init=False)

    def take(self, header: BatchHeader, batch: memoryview) -> None:
        if header.is_control:
            self._take_marker(header, batch)
        elif header.is_transactional and header.record_count:
            begun = self._begun.get(header.producer_id)
            first_offset = header.base_offset if begun is None else begun.first_offset
            self._begun[header.producer_id] = _Begun(first_offset, header.producer_epoch)

    def _take_marker(self, header: BatchHeader, batch: memoryview) -> None:
        try:
            marker = parse_marker(batch, header)
        except KafkaError as exc:
            self._damage.append(f"the marker at offset {header.base_offset} can't be read: {exc}")
            return
        if marker is None and header.record_count:
            return  # of another kind, which is not about transactions
        begun = self._begun.pop(header.producer_id, None)
        if marker is not None:
            first_offset = None if begun is None else begun.first_offset
            self._markers[header.base_offset] = _Marked(header.producer_id, marker.is_commit, first_offset)
        self._last_markers[header.producer_id] = header.base_offset
        self._first_markers.setdefault(header.producer_id, None if marker is None else marker.is_commit)

    def told(self, footer: Footer) -> Told:
        return Told(
            base_offset=footer.identity.base_offset,
            aborted={(transaction.producer_id, transaction.first_offset) for transaction in footer.aborted},
            open={
                (open_transaction.producer_id, open_transaction.first_offset)
                for open_transaction in footer.open_transactions
            },
            first_markers=self._first_markers,
            has_holes=_has_holes(footer),
        )

    def finish(self, footer: Footer) -> Iterator[str]:
        yield from self._damage
        told = {transaction.marker_offset: transaction for transaction in footer.aborted}
        for aborted in footer.aborted:
            yield from self._check_aborted(aborted)
        for offset, marked in self._markers.items():
            if not marked.is_commit and marked.first_offset is not None:
                yield from _check_abort(offset, marked, marked.first_offset, told.get(offset), footer)
        open_transactions = {
            open_transaction.producer_id: open_transaction for open_transaction in footer.open_transactions
        }
        for producer_id, begun in self._begun.items():
            yield from _check_begun(producer_id, begun, open_transactions.get(producer_id), footer)
        for open_transaction in footer.open_transactions:
            yield from self._check_open(open_transaction, footer)

    def _check_aborted(self, aborted: AbortedTransaction) -> Iterator[str]:
        marked = self._markers.get(aborted.marker_offset)
        what = f"the footer tells of a transaction of producer {aborted.producer_id} that was aborted"
        if marked is None or marked.producer_id != aborted.producer_id:
            yield f"{what} at offset {aborted.marker_offset}, where no marker of it is"
        elif marked.is_commit:
            yield f"{what} at offset {aborted.marker_offset}, where a marker has committed it"

    def _check_open(self, opened: OpenTransaction, footer: Footer) -> Iterator[str]:
        if opened.producer_id in self._begun:
            return
        what = f"the footer tells of an open transaction of producer {opened.producer_id} from {opened.first_offset} on"
        if self._last_markers.get(opened.producer_id, -1) > opened.first_offset:
            yield f"{what}, and a marker has ended it"
        elif opened.first_offset >= footer.identity.base_offset and not _has_holes(footer):
            yield f"{what}, and has no batch of it"


def _check_abort(
    offset: int, marked: _Marked, first_offset: int, told: AbortedTransaction | None, footer: Footer
) -> Iterator[str]:
    what = f"the transaction of producer {marked.producer_id} from offset {first_offset} on"
    if told is None or told.producer_id != marked.producer_id:
        yield f"{what} was aborted by the marker at offset {offset}, and the footer does not tell"
    elif _begins_elsewhere(told.first_offset, first_offset, footer):
        yield f"{what} was aborted, and begins at offset {told.first_offset} by the footer"


def _check_begun(producer_id: int, begun: _Begun, told: OpenTransaction | None, footer: Footer) -> Iterator[str]:
    if told is None:
        what = f"the transaction of producer {producer_id} at offset {begun.first_offset} has no marker"
        yield f"{what}, and the footer does not tell that it is open"
    elif _begins_elsewhere(told.first_offset, begun.first_offset, footer) or (
        told.epoch != begun.epoch and not _has_holes(footer)
    ):
        yield (
            f"the open transaction of producer {producer_id} begins at offset {begun.first_offset} and has epoch "
            f"{begun.epoch}; by the footer it begins at {told.first_offset} and has epoch {told.epoch}"
        )


def _has_holes(footer: Footer) -> bool:
    """Tell by its count of records whether a segment was compacted.

    The last segment of a compaction alone tells how far it went.
    """
    return footer.record_count <= footer.last_offset - footer.identity.base_offset


def _begins_elsewhere(told: int, found: int, footer: Footer) -> bool:
    """Tell whether a footer has a wrong first offset of a transaction, given that of its first batch here."""
    if _has_holes(footer):
        return told > found
    return told != found and told >= footer.identity.base_offset
