"""The newest records of topics, which are in no segment yet: the ends of partitions at brokers, and their batches.

Batches are fetched by the topic's id, so they are never of another topic of that name. Offsets are asked for by name,
and the id again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

import attrs

from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.login.failures import check, failure
from kafscale.login.security import client_security
from kafscale.spark.brokers.cluster import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, Cluster
from kafscale.wire import error_codes
from kafscale.wire.batch_header import parse_header
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

FETCH_BY_ID_VERSION: Final = 13  # the first one
FETCH_BYTES: Final = 8 << 20
ONE_BATCH_BYTES: Final = 1  # a broker gives the first batch whatever its size
FETCH_WAIT_MS: Final = 500
RETRY_SECONDS: Final = 60.0  # as long as a store that does not answer; a broker restarts within it
INSTEAD: Final = "name a broker that answers, or set freshness to bucket, which reads what is in the bucket alone"

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class PartitionEnds:
    """The beginning and end of a partition at its leader; both ends are exclusive."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


@attrs.frozen
class NewestTopic:
    """A topic at one moment, with all partitions."""

    topic_id: bytes
    partitions: Mapping[int, PartitionEnds]


@attrs.frozen(kw_only=True)
class FetchedTopic:
    """One partition of one topic, also if its name is given to another topic later."""

    name: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic '{self.name}'"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Fetched:
    """Batches from an offset on, the last of which may be cut off; none if the log begins behind it.

    aborted: producer id and first offset of the aborted transactions among them, if only committed records were asked
    for.
    """

    records: memoryview
    aborted: Sequence[tuple[int, int]]
    log_start_offset: int


@attrs.frozen(kw_only=True)
class BrokerOptions:
    """The addresses of brokers; travels to the tasks. `settings` secure the connections, by Kafka's names."""

    bootstrap: Sequence[Address]
    settings: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    def open(self) -> NewestReader:
        """Return a reader, which connects later. Raises ConfigError."""
        cluster = Cluster(
            bootstrap=self.bootstrap, security=client_security(self.settings), retry_seconds=RETRY_SECONDS
        )
        return NewestReader(cluster)


@attrs.frozen(eq=False, repr=False)
class NewestReader:
    """Asks the brokers of one cluster. Every method raises BrokerUnavailable if none answers, and KafkaError."""

    cluster: Cluster

    def close(self) -> None:
        self.cluster.close()

    def topics(self) -> Sequence[str]:
        return self._patiently(self.cluster.topics)

    def look(self, topic: str) -> NewestTopic | None:
        """Return the beginnings and ends of a topic now; None if it does not exist."""

        def attempt() -> NewestTopic | None:
            found = self.cluster.find(topic)
            if found is None:
                return None
            indexes = range(found.partition_count)
            starts = self.cluster.offsets(topic, indexes, EARLIEST)
            stable = self.cluster.offsets(topic, indexes, LATEST, isolation_level=READ_COMMITTED)
            ends = self.cluster.offsets(topic, indexes, LATEST)  # behind the others, which do not go further
            if self.cluster.find(topic) != found:
                raise failure(error_codes.INCONSISTENT_TOPIC_ID, f"topic '{topic}' has changed meanwhile")
            return NewestTopic(
                found.topic_id,
                {
                    index: PartitionEnds(
                        log_start_offset=starts[index], high_watermark=ends[index], last_stable_offset=stable[index]
                    )
                    for index in indexes
                },
            )

        return self._patiently(attempt)

    def first_as_late(self, of: FetchedTopic, timestamp_ms: int) -> int | None:
        """Return the offset of the first record of this time or later; None without one, or without the topic."""

        def attempt() -> int | None:
            found = self.cluster.offsets(of.name, [of.partition], timestamp_ms)[of.partition]
            return None if found < 0 or not self._is_there(of) else found

        return self._while_there(of, attempt)

    def fetch(
        self, of: FetchedTopic, offset: int, *, committed_only: bool, max_bytes: int = FETCH_BYTES
    ) -> Fetched | None:
        """Return batches from the one with this offset on; None if the topic was deleted.

        Raises KafkaError: OFFSET_NOT_AVAILABLE if the log ends before the offset.
        """
        isolation_level = READ_COMMITTED if committed_only else READ_UNCOMMITTED
        return self._while_there(of, lambda: self._fetch(of, offset, isolation_level, max_bytes))

    def aborted_around(self, of: FetchedTopic, offset: int, *, open_until: int) -> Collection[int] | None:
        """Return the producers whose transaction around an offset below the last stable offset was aborted.

        Each has at most one that begins at or before the offset and ends behind `open_until`. None if that is unknown:
        records have gone meanwhile, and those that follow may be behind a marker.
        """
        try:
            fetched = self.fetch(of, offset, committed_only=True, max_bytes=ONE_BATCH_BYTES)
        except KafkaError as exc:
            if exc.code != error_codes.OFFSET_NOT_AVAILABLE:
                raise
            return None
        if fetched is None or not fetched.records:
            return None
        header = parse_header(fetched.records)
        if not header.record_count or header.base_offset > open_until + 1:
            return None
        return {producer_id for producer_id, first_offset in fetched.aborted if first_offset <= offset}

    def _fetch(self, of: FetchedTopic, offset: int, isolation_level: int, max_bytes: int) -> Fetched:
        wanted = FetchPartition(partition=of.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            topics=[FetchTopic(topic_id=of.topic_id, partitions=[wanted])],
        )
        leader = self.cluster.leader(of.name, of.partition)
        response = self.cluster.ask(leader, request, FetchResponse, version=FETCH_BY_ID_VERSION)
        check(response.error_code, f"{of}")
        answer: PartitionData = response.responses[0].partitions[0]
        if answer.error_code == error_codes.OFFSET_OUT_OF_RANGE:
            start_offset = self.cluster.offsets(of.name, [of.partition], EARLIEST)[of.partition]
            if not self._is_there(of):
                raise failure(error_codes.UNKNOWN_TOPIC_ID, f"{of}")
            if start_offset > offset:
                return Fetched(records=memoryview(b""), aborted=(), log_start_offset=start_offset)
        else:
            check(answer.error_code, f"offset {offset} of {of}")
        records = memoryview(answer.records or b"")  # type: ignore[arg-type] # decoded: one buffer
        if not records:
            raise failure(error_codes.OFFSET_NOT_AVAILABLE, f"offset {offset} of {of}")
        aborted = [
            (transaction.producer_id, transaction.first_offset) for transaction in answer.aborted_transactions or ()
        ]
        return Fetched(records=records, aborted=aborted, log_start_offset=answer.log_start_offset)

    def _is_there(self, of: FetchedTopic) -> bool:
        found = self.cluster.find(of.name)
        return found is not None and found.topic_id == of.topic_id

    def _while_there(self, of: FetchedTopic, attempt: Callable[[], T]) -> T | None:
        def attempt_if_there() -> T | None:
            try:
                return attempt()
            except KafkaError as exc:
                if exc.code not in error_codes.RETRIABLE or exc.code == error_codes.OFFSET_NOT_AVAILABLE:
                    raise
                if self._is_there(of):
                    raise
                return None

        return self._patiently(attempt_if_there)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        try:
            return self.cluster.patiently(attempt)
        except BrokerUnavailable as exc:
            raise BrokerUnavailable(self._without_answer(exc)) from exc
        except KafkaError as exc:
            if exc.code not in error_codes.RETRIABLE or exc.code == error_codes.OFFSET_NOT_AVAILABLE:
                raise
            raise BrokerUnavailable(self._without_answer(exc)) from exc

    def _without_answer(self, exc: Exception) -> str:
        names = ",".join(map(str, self.cluster.bootstrap))
        return (
            f"freshness is broker, and no broker of kafka.bootstrap.servers ({names}) has told what is newest in "
            f"{self.cluster.retry_seconds:g} s: {exc}; {INSTEAD}"
        )
