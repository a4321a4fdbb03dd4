"""Brokers and placements as entries of the metadata.

    brokers/<id>/record                   a BrokerRecord: the incarnation that may act as this broker
    cluster/next-number                   the next incarnation, leader epoch or term; none is ever used twice
    cluster/controller                    a ControllerRecord
    assignments/<topic id>/<hundred>      the placements of a hundred partitions (`kafscale.formats.placements`)

An *incarnation* is one start of a broker. Its number is also the leader epoch of the partitions that it leads from then
on, and the high half of its producer ids, as the epoch of a claim is for a lone broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import attrs

from kafscale.cluster.membership.node import Endpoint
from kafscale.cluster.metadata.converter import NO_OTHERS, decode, encode, keeping_others, others_field
from kafscale.errors import DamagedObject
from kafscale.formats.manifest import PartitionId
from kafscale.formats.placements import ROW_COUNT, row_key

BROKERS = "brokers/"
CLUSTER = "cluster/"
NEXT_NUMBER_KEY = f"{CLUSTER}next-number"
CONTROLLER_KEY = f"{CLUSTER}controller"

NOBODY = -1
UNDECIDED = -1  # the decided epoch of a partition that no broker of several has led yet
UNSETTLED_MAX_COUNT = 100  # successive starts, each with a new directory, that ended while they waited

_RECORD = "/record"
_RECORD_KEY = re.compile(f"{BROKERS}([0-9]+){_RECORD}")


class BrokerState(Enum):
    """State of an incarnation.

    An AWAY broker is not heard of, and keeps its partitions until it is LIVE again. A FENCED broker must not go on: its
    partitions get other leaders.
    """

    LIVE = "live"
    STOPPED = "stopped"
    AWAY = "away"
    FENCED = "fenced"


@keeping_others
@attrs.frozen(kw_only=True)
class BrokerRecord:
    """A broker as the others know it.

    endpoints             by listener; None if clients are told the address that they have reached
    acknowledges_locally  it runs with `--durability wal`, on the data directory `directory_id`
    has_stream            it runs with `s3-wal`: the stream of its incarnation has all acknowledged records
    is_draining           it must lead nothing, by an operator
    is_leaving            it is being stopped; cleared by the next start
    is_given_up           an operator has given up records that are only on its disk
    has_flushed           it has stopped, and all its records are in segments
    unsettled             data directories of earlier incarnations that may still acknowledge, as no start waited
    has_no_room           its disk is full (`kafscale.cluster.membership.placement.leaving`)
    secret_hash           proves the sender of a heartbeat (`kafscale.cluster.membership.peers.peer_connections`)
    others                fields of later versions
    """

    incarnation: int
    state: BrokerState
    endpoints: Mapping[str, Endpoint | None]
    directory_id: str
    acknowledges_locally: bool
    has_stream: bool = False
    rack: str | None = None
    is_draining: bool = False
    is_leaving: bool = False
    version: str = ""
    is_given_up: bool = False
    has_flushed: bool = False
    unsettled: tuple[str, ...] = ()
    has_no_room: bool = False
    secret_hash: bytes = b""
    others: Mapping[str, object] = others_field()

    @property
    def may_fail_over(self) -> bool:
        """Tell whether the bucket has all its acknowledged records, or an operator has given up the rest."""
        return self.is_given_up or not self.acknowledges_locally

    def unsettled_for(self, directory_id: str) -> tuple[str, ...]:
        """Return the data directories that the next incarnation, on this directory, must wait for."""
        may_go_on = self.acknowledges_locally and self.state is not BrokerState.STOPPED
        return to_wait_for(self.unsettled, self.directory_id if may_go_on else None, directory_id)

    @property
    def stays(self) -> bool:
        """Tell whether it serves and is not being stopped."""
        return self.state is BrokerState.LIVE and not self.is_leaving

    @property
    def may_lead(self) -> bool:
        """Tell whether partitions should go to this broker."""
        return self.stays and not self.is_draining and not self.has_no_room


@attrs.frozen(kw_only=True)
class ControllerRecord:
    """The incarnation that is the controller for one `term`; broker id -1 after a controller has stepped down."""

    broker_id: int
    incarnation: int
    term: int


@attrs.frozen
class Placement:
    """Leader and leader epoch of a partition, and the `target` that is to lead it next, if any.

    `decided_epoch` began at `decided_offset`: records of earlier epochs that end at or behind that offset are not part
    of the log. A partition is served only after that is committed.

    `replicas` are the brokers that an operator has assigned the partition to: the first leads it while it serves.
    Balance moves only partitions without.

    `recover` are the incarnations whose streams may have records that are in no segment yet, in the order in which they
    led. The leader ends and replays these streams; they stay here until all their records are flushed.

    `others` holds columns of later versions.
    """

    leader: int
    epoch: int
    decided_epoch: int
    decided_offset: int
    target: int | None = None
    replicas: tuple[int, ...] = attrs.field(default=(), kw_only=True)
    recover: tuple[int, ...] = attrs.field(default=(), kw_only=True)
    others: Mapping[str, object] = others_field()

    @property
    def is_decided(self) -> bool:
        return self.decided_epoch == self.epoch

    def is_decided_at(self, offset: int) -> bool:
        return self.is_decided and self.decided_offset == offset

    @property
    def is_settled(self) -> bool:
        """Tell whether its epoch is decided, and no earlier stream is left to recover."""
        return self.is_decided and not self.recover

    def recover_from(self, leader: BrokerRecord) -> tuple[int, ...]:
        """Return `recover` for the next leader after `leader`, which has not released the partition.

        A leader whose epoch is not decided has acknowledged nothing. If the result is not empty, the next leader must
        have a stream itself.
        """
        return (*self.recover, leader.incarnation) if leader.has_stream and self.is_decided else self.recover


@keeping_others
@attrs.frozen(kw_only=True)
class _PlacementRow:
    """Placements by column; `targets`, `replicas`, `recovers` and columns of later versions are sparse, by place."""

    leaders: list[int]
    epochs: list[int]
    decided_epochs: list[int]
    decided_offsets: list[int]
    targets: dict[str, int] = attrs.field(factory=dict)
    replicas: dict[str, list[int]] = attrs.field(factory=dict)
    recovers: dict[str, list[int]] = attrs.field(factory=dict)
    others: Mapping[str, object] = others_field()


def broker_prefix(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}/"


def record_key(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}{_RECORD}"


def parse_record_key(key: str) -> int | None:
    """Return the broker's id, or None for any other key."""
    found = _RECORD_KEY.fullmatch(key)
    return None if found is None else int(found[1])


def encode_row(placements: Sequence[Placement]) -> bytes:
    return encode(
        _PlacementRow(
            leaders=[placement.leader for placement in placements],
            epochs=[placement.epoch for placement in placements],
            decided_epochs=[placement.decided_epoch for placement in placements],
            decided_offsets=[placement.decided_offset for placement in placements],
            targets={
                str(place): placement.target
                for place, placement in enumerate(placements)
                if placement.target is not None
            },
            replicas={
                str(place): list(placement.replicas) for place, placement in enumerate(placements) if placement.replicas
            },
            recovers={
                str(place): list(placement.recover) for place, placement in enumerate(placements) if placement.recover
            },
            others=_by_column(placement.others for placement in placements),
        )
    )


def decode_row(value: bytes) -> list[Placement]:
    """Decode a row of placements. Raises DamagedObject."""
    row = decode(_PlacementRow, value)
    if not len(row.leaders) == len(row.epochs) == len(row.decided_epochs) == len(row.decided_offsets):
        raise DamagedObject(f"the metadata store holds a row of placements whose columns differ: {value[:200]!r}")
    others = _by_place(row.others, len(row.leaders)) if row.others else {}
    columns = zip(row.leaders, row.epochs, row.decided_epochs, row.decided_offsets, strict=True)
    return [
        Placement(
            *column,
            row.targets.get(str(place)),
            replicas=tuple(row.replicas.get(str(place), ())),
            recover=tuple(row.recovers.get(str(place), ())),
            others=others.get(str(place), NO_OTHERS),
        )
        for place, column in enumerate(columns)
    ]


def _by_column(others: Iterable[Mapping[str, object]]) -> Mapping[str, Mapping[str, object]]:
    """Return the columns of later versions, each by place."""
    columns: dict[str, dict[str, object]] = {}
    for place, other in enumerate(others):
        if other:
            for name, value in other.items():
                columns.setdefault(name, {})[str(place)] = value
    return columns


def _by_place(columns: Mapping[str, object], count: int) -> Mapping[str, Mapping[str, object]]:
    """Return the values of later versions by place. Raises DamagedObject for a column that is not by place."""
    others: dict[str, dict[str, object]] = {str(place): {} for place in range(count)}
    for name, column in columns.items():
        if not isinstance(column, Mapping) or not column.keys() <= others.keys():
            raise DamagedObject(f"a row of {count} placements has a column {name} that is not by place")
        for place, value in column.items():
            others[place][name] = value
    return others


def rows_of(topic_id: bytes, placements: Sequence[Placement], changed: Sequence[int]) -> Mapping[str, bytes]:
    """Return the entries that hold the changed indexes of a topic's placements."""
    firsts = {index // ROW_COUNT * ROW_COUNT for index in changed}
    return {row_key(topic_id, first): encode_row(placements[first : first + ROW_COUNT]) for first in sorted(firsts)}


def changed_rows(
    placements: Mapping[bytes, Sequence[Placement]], changed: Mapping[PartitionId, Placement]
) -> dict[str, bytes]:
    """Return the entries that hold the changed placements."""
    by_topic: dict[bytes, dict[int, Placement]] = {}
    for (topic_id, index), placement in changed.items():
        by_topic.setdefault(topic_id, {})[index] = placement
    puts: dict[str, bytes] = {}
    for topic_id, new in by_topic.items():
        row = [new.get(index, current) for index, current in enumerate(placements[topic_id])]
        puts |= rows_of(topic_id, row, list(new))
    return puts


def to_wait_for(unsettled: Sequence[str], last: str | None, directory_id: str) -> tuple[str, ...]:
    """Return the data directories whose brokers may still acknowledge, for a start on another directory.

    The last start was to wait for `unsettled`; `last` is its own, None if it can't acknowledge any more.
    """
    known = dict.fromkeys(unsettled if last is None else (*unsettled, last))
    return tuple(directory for directory in known if directory != directory_id)[-UNSETTLED_MAX_COUNT:]
