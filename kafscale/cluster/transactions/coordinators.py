"""The coordinators of the partitions of `__transaction_state` that this broker leads, and those that are being loaded.

    loading = coordinators.begin_loading(partition, coordinator_epoch)
    loading.apply(record)                              each record of the partition, in order
    coordinator = coordinators.finish_loading(loading) and then its `resume`

A partition that is handed over meanwhile is `resign`ed, and the loading comes to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from kafscale.cluster.coordinator.partitioning import coordinator_partition
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.ledger import Places
from kafscale.cluster.transactions.questions import (
    TransactionDescription,
    TransactionFilter,
    TransactionListing,
    list_transactions,
)
from kafscale.cluster.transactions.settings import TransactionSettings
from kafscale.cluster.transactions.states import TransactionState
from kafscale.cluster.transactions.transaction import Transaction
from kafscale.cluster.transactions.values import StateRecord, TopicPartition
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    INVALID_REQUEST,
    NOT_COORDINATOR,
    TRANSACTIONAL_ID_NOT_FOUND,
)


@attrs.define(eq=False, repr=False)
class Loading:
    """What the records of a partition say so far."""

    partition: int
    coordinator_epoch: int
    _transactions: dict[str, Transaction] = attrs.field(factory=dict, init=False)

    def apply(self, record: StateRecord) -> None:
        """The last record of an id counts. Raises ValueError for a state that Kafka does not have."""
        if record.value is None or record.value.transaction_status == TransactionState.DEAD:
            self._transactions.pop(record.transactional_id, None)
        else:
            self._transactions[record.transactional_id] = Transaction.of(record.transactional_id, record.value)

    @property
    def transactions(self) -> Iterator[Transaction]:
        return iter(self._transactions.values())


@attrs.define(eq=False, kw_only=True, repr=False)
class TransactionCoordinators:
    """All that are here."""

    partition_count: int  # of `__transaction_state`
    settings: TransactionSettings
    leads: Callable[[TopicPartition], bool]  # as for each coordinator
    places: Places = attrs.field(init=False)
    _coordinators: dict[int, TransactionCoordinator] = attrs.field(factory=dict, init=False)
    _loading: dict[int, Loading] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.places = Places(self.settings.max_transactional_id_count)

    def __iter__(self) -> Iterator[TransactionCoordinator]:
        return iter(self._coordinators.values())

    def partition_of(self, transactional_id: str) -> int:
        """Return the partition whose leader coordinates the id."""
        return coordinator_partition(transactional_id, self.partition_count)

    def find(self, transactional_id: str) -> TransactionCoordinator:
        """Return who coordinates the id. Raises KafkaError NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        partition = self.partition_of(transactional_id)
        coordinator = self._coordinators.get(partition)
        if coordinator is not None and not coordinator.is_resigned:
            return coordinator
        if partition in self._loading:
            raise KafkaError(COORDINATOR_LOAD_IN_PROGRESS, f"__transaction_state-{partition} is being read: try again")
        raise KafkaError(NOT_COORDINATOR, f"__transaction_state-{partition} is not led by this broker")

    def is_current(self, coordinator: TransactionCoordinator) -> bool:
        """Tell whether this one coordinates its partition still, and no later one does."""
        return self._coordinators.get(coordinator.partition) is coordinator

    def begin_loading(self, partition: int, coordinator_epoch: int) -> Loading:
        """This broker leads the partition from now on, with this leader epoch."""
        assert 0 <= partition < self.partition_count
        self.resign(partition)
        loading = Loading(partition, coordinator_epoch)
        self._loading[partition] = loading
        return loading

    def finish_loading(self, loading: Loading) -> TransactionCoordinator | None:
        """Coordinate what has been read; None if the partition has been given up, or is being read anew."""
        if self._loading.get(loading.partition) is not loading:
            return None
        del self._loading[loading.partition]
        coordinator = TransactionCoordinator(
            partition=loading.partition,
            coordinator_epoch=loading.coordinator_epoch,
            settings=self.settings,
            leads=self.leads,
            places=self.places,
        )
        coordinator.restore(loading.transactions)
        self._coordinators[loading.partition] = coordinator
        return coordinator

    def resign(self, partition: int) -> None:
        """This broker leads the partition no more, or what was decided there can't be written."""
        self._loading.pop(partition, None)
        coordinator = self._coordinators.pop(partition, None)
        if coordinator is not None:
            coordinator.resign()

    @property
    def is_settled(self) -> bool:
        """Tell whether all that was decided is durable; until then `list` and `describe` say what may be lost."""
        return all(each.is_settled for each in self)

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Answer for one id of a DescribeTransactions."""
        if not transactional_id:
            return TransactionDescription(transactional_id=transactional_id, error_code=INVALID_REQUEST)
        try:
            held = self.find(transactional_id).get(transactional_id)
        except KafkaError as exc:
            return TransactionDescription(transactional_id=transactional_id, error_code=exc.code)
        if held is None:
            return TransactionDescription(transactional_id=transactional_id, error_code=TRANSACTIONAL_ID_NOT_FOUND)
        return TransactionDescription.of(held)

    def list(self, wanted: TransactionFilter, *, now_ms: int) -> TransactionListing:
        """Answer a ListTransactions, which asks every broker for what it coordinates."""
        if self._loading:
            return TransactionListing(error_code=COORDINATOR_LOAD_IN_PROGRESS)
        return list_transactions((held for each in self for held in each.held()), wanted, now_ms=now_ms)

    def next_due_ms(self) -> int | None:
        """The time at which some coordinator's `due` has something to do; None: never, as things are."""
        times = [due_ms for each in self if (due_ms := each.next_due_ms()) is not None]
        return min(times, default=None)
