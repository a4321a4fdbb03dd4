"""Versions of the head of the metadata, recorded at the moment of each write; and its rules.

    forked      a version lacks entries of the one before that no checkpoint has
    moved back  a version has fewer revisions, or an entry that had been left out
    epoch       a new leader without a larger leader epoch, or a new incarnation that is not larger
    granted     a partition that another broker leads although the one before has not released it

It follows the metadata as a broker does, so it also knows the leaders at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from kafscale.cluster.membership.leading.leading import begun
from kafscale.cluster.membership.records import (
    BrokerRecord,
    BrokerState,
    Placement,
    decode_row,
    parse_record_key,
    record_key,
)
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import decode
from kafscale.formats.manifest import PartitionId
from kafscale.formats.metadata_changes import decode_transaction
from kafscale.formats.metadata_head import Head, decode_head
from kafscale.formats.placements import ASSIGNMENTS, ROW_COUNT, parse_row_key
from kafscale.formats.segment import EpochStart


@attrs.frozen
class Grant:
    topic_id: bytes
    index: int
    before: Placement
    after: Placement


@attrs.define(eq=False, kw_only=True)
class HeadLog:
    """`key` is the head's; `has_released` tells whether the former leader of a grant can't lead any more."""

    key: str
    has_released: Callable[[Grant], bool]
    note: Callable[[str], None]
    faults: list[str] = attrs.field(factory=list, init=False)
    grant_count: int = attrs.field(default=0, init=False)
    placements: dict[PartitionId, Placement] = attrs.field(factory=dict, init=False)
    brokers: dict[int, BrokerRecord] = attrs.field(factory=dict, init=False)
    _head: Head | None = attrs.field(default=None, init=False)

    @property
    def revision(self) -> int:
        return 0 if self._head is None else self._head.revision

    def put(self, key: str, data: bytes) -> None:
        if key != self.key:
            return
        head, before = decode_head(key, data), self._head
        if before is None:
            new = head.behind(head.kept_until)
        else:
            self._compare(before, head)
            new = head.behind(before.revision)
        self._head = head
        for entry in new or ():
            self._apply(decode_transaction(memoryview(entry.data)))

    def begun(self, partition_id: PartitionId) -> Sequence[EpochStart]:
        """Return the start of the last decided epoch of a partition."""
        placement = self.placements.get(partition_id)
        return () if placement is None else begun(placement)

    def is_leader(self, broker_id: int, incarnation: int, partition_id: PartitionId) -> bool:
        """Tell whether an incarnation of a broker leads a partition, as of the last version."""
        placement = self.placements.get(partition_id)
        return self.may_act(broker_id, incarnation) and placement is not None and placement.leader == broker_id

    def may_act(self, broker_id: int, incarnation: int) -> bool:
        """Tell whether an incarnation of a broker was neither replaced nor fenced, as of the last version."""
        record = self.brokers.get(broker_id)
        return record is not None and record.incarnation == incarnation and record.state is not BrokerState.FENCED

    def _compare(self, before: Head, after: Head) -> None:
        if after.epoch != before.epoch or after.revision <= before.revision or after.kept_until < before.kept_until:
            self.faults.append(f"the head moved back: from {_place(before)} to {_place(after)}")
        elif after.kept_until > before.revision:
            self.faults.append(f"the head has left out what it never had: {_place(before)}, {_place(after)}")
        elif (
            before.entries[after.kept_until - before.kept_until :]
            != after.entries[: before.revision - after.kept_until]
        ):
            self.faults.append(f"the head has forked: from {_place(before)} to {_place(after)}")

    def _apply(self, transaction: Transaction) -> None:
        for key in transaction.deletes:
            self._delete(lambda known, key=key: known == key)  # type: ignore[misc]
        for prefix in transaction.delete_prefixes:
            self._delete(lambda known, prefix=prefix: known.startswith(prefix))  # type: ignore[misc]
        for key, value in transaction.puts.items():
            if (broker_id := parse_record_key(key)) is not None:
                record, known = decode(BrokerRecord, value), self.brokers.get(broker_id)
                if known is not None and known.incarnation > record.incarnation:
                    self.faults.append(
                        f"broker {broker_id}: incarnation {record.incarnation} follows {known.incarnation}"
                    )
                self.brokers[broker_id] = record
        for key, value in transaction.puts.items():
            if (row_id := parse_row_key(key)) is not None:
                self._put_row(*row_id, value)

    def _delete(self, is_meant: Callable[[str], bool]) -> None:
        for partition_id in [placement for placement in self.placements if is_meant(_row_key(placement))]:
            del self.placements[partition_id]
        for broker_id in [broker for broker in self.brokers if is_meant(record_key(broker))]:
            del self.brokers[broker_id]

    def _put_row(self, topic_id: bytes, first: int, value: bytes) -> None:
        for index, after in enumerate(decode_row(value), start=first):
            before = self.placements.get((topic_id, index))
            self.placements[topic_id, index] = after
            if before is None or before == after:
                continue
            self._check_epoch(topic_id, index, before, after)
            if before.leader != after.leader:
                self._check_grant(Grant(topic_id, index, before, after))

    def _check_epoch(self, topic_id: bytes, index: int, before: Placement, after: Placement) -> None:
        where = f"{topic_id.hex()}-{index}"
        if after.epoch < before.epoch or (after.leader != before.leader and after.epoch == before.epoch):
            self.faults.append(f"{where}: epoch {after.epoch} follows {before.epoch}")
        if after.decided_epoch > after.epoch or after.decided_epoch < before.decided_epoch:
            self.faults.append(f"{where}: {after} was decided after {before}")
        if after.decided_epoch == before.decided_epoch and after.decided_offset != before.decided_offset:
            self.faults.append(f"{where}: {after} has an epoch begin elsewhere than {before}")

    def _check_grant(self, grant: Grant) -> None:
        self.grant_count += 1
        where = f"{grant.topic_id.hex()}-{grant.index}"
        self.note(f"granted {where} to {grant.after.leader} with {grant.after.epoch}, before {grant.before}")
        if not self.has_released(grant):
            self.faults.append(f"{where} was granted to {grant.after.leader}, and {grant.before} has not released it")


def _row_key(partition_id: PartitionId) -> str:
    topic_id, index = partition_id
    return f"{ASSIGNMENTS}{topic_id.hex()}/{index // ROW_COUNT:05d}"


def _place(head: Head) -> str:
    return f"{head.kept_until} + {len(head.entries)} of epoch {head.epoch}"
