"""Builds the registries, the coordinators and the cleaning tasks of a broker. Nothing runs or is read yet."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

import attrs
import trio

from kafscale.cluster.coordinator.entries import InternalLog
from kafscale.cluster.coordinator.loading import Leadership
from kafscale.cluster.coordinator.partitions import TopicPartition, coordinator_partition
from kafscale.cluster.coordinator.writer import TopicLog
from kafscale.cluster.groups.common.context import Rights
from kafscale.cluster.groups.configs import GroupConfigs
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.membership.assignment import Assignment
from kafscale.cluster.membership.start.member import ClusterMember
from kafscale.cluster.registries.acls import AclRegistry
from kafscale.cluster.registries.client_quotas import ClientQuotas
from kafscale.cluster.registries.dynamic_configs import BrokerConfigs
from kafscale.cluster.registries.producer_ids import ProducerIds
from kafscale.cluster.registries.scram_users import ScramUsers
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME, TRANSACTION_STATE_NAME
from kafscale.cluster.registries.topics import Topic, TopicRegistry
from kafscale.cluster.transactions.hanging import CoordinatedBy, HangingSearch, Knowledge
from kafscale.cluster.transactions.offset_commits import TransactionalOffsets
from kafscale.cluster.transactions.service import TransactionService
from kafscale.config import Settings
from kafscale.log.bucket.deletion import BuriedTopic, OrphanCollector, TopicDeleter
from kafscale.log.log import Log, expire_producers
from kafscale.log.rewrite.retention import Retention
from kafscale.metrics import Metrics
from kafscale.store.guarded import guarded


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Registries:
    """The registries that follow the metadata."""

    topics: TopicRegistry
    producer_ids: ProducerIds
    client_quotas: ClientQuotas
    broker_configs: BrokerConfigs
    group_configs: GroupConfigs
    scram_users: ScramUsers
    acls: AclRegistry

    @classmethod
    def of(cls, settings: Settings, member: ClusterMember) -> Registries:
        metadata = member.metadata
        return cls(
            topics=TopicRegistry(store=metadata, settings=settings, place=member.place),
            producer_ids=ProducerIds(metadata, member.epoch),
            client_quotas=ClientQuotas(metadata),
            broker_configs=BrokerConfigs(metadata, settings),
            group_configs=GroupConfigs(metadata, settings.coordinator),
            scram_users=ScramUsers.of(settings, metadata),
            acls=AclRegistry(metadata),
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Coordinators:
    """The coordinators of groups and transactions; `leadership` reads their partitions."""

    internal: InternalLog
    leadership: Leadership
    groups: GroupCoordinator
    transactions: TransactionService
    transactional_offsets: TransactionalOffsets

    def register(self, metrics: Metrics) -> None:
        self.transactions.register(metrics)
        self.leadership.register(metrics)
        self.groups.state_bytes.register(metrics)


def build_coordinators(
    settings: Settings,
    member: ClusterMember,
    registries: Registries,
    *,
    internal: InternalLog,
    assignment: Assignment,
    draining: trio.Event,
    rights: Rights | None,
) -> Coordinators:
    """Make the coordinators; `draining` is set when the broker begins to stop."""
    topics, leadership = registries.topics, Leadership(internal.log)
    groups = GroupCoordinator(
        TopicLog(internal, CONSUMER_OFFSETS_NAME),
        settings,
        draining=draining,
        overrides=registries.group_configs.overrides,
        has_topic=lambda name: topics.get(name) is not None,
        partition_count=partial(partition_count, topics, CONSUMER_OFFSETS_NAME),
        rights=rights,
    )
    leadership.topics[CONSUMER_OFFSETS_NAME] = groups.led
    internal.on_end[CONSUMER_OFFSETS_NAME] = groups.transactions.end
    transactions = TransactionService(
        internal=internal,
        settings=settings,
        topic=TRANSACTION_STATE_NAME,
        partition_count=partial(partition_count, topics, TRANSACTION_STATE_NAME),
        exists=lambda at: at.partition < partition_count(topics, at.topic),
        allocate_producer_id=registries.producer_ids.allocate,
        check_lead=member.check.confirm,
        remote=member.remote_coordinators(partial(_other_leader, topics, assignment), partial(_coordinated_at, topics)),
    )
    leadership.topics[transactions.topic] = transactions.led
    return Coordinators(
        internal=internal,
        leadership=leadership,
        groups=groups,
        transactions=transactions,
        transactional_offsets=TransactionalOffsets(
            internal=internal, groups=groups, transactions=transactions, topic=CONSUMER_OFFSETS_NAME
        ),
    )


async def end_hanging(
    transactions: TransactionService, member: ClusterMember, *, topics: TopicRegistry, assignment: Assignment, log: Log
) -> None:
    """Abort open transactions that no coordinator knows, until cancelled; all internal partitions must be loaded."""

    def leaders() -> Sequence[CoordinatedBy | None]:
        topic = topics.get(TRANSACTION_STATE_NAME)
        if topic is None:
            return ()
        found = [assignment.leader(topic, index) for index in range(topic.partition_count)]
        return [None if leader is None else CoordinatedBy(leader.node_id, leader.epoch) for leader in found]

    async def ask(broker_id: int, producer_ids: Collection[int]) -> Knowledge:
        if broker_id == assignment.node.node_id:
            return await transactions.known(producer_ids)
        return await transactions.remote.known(broker_id, producer_ids)

    search = HangingSearch(
        partitions=log.partitions.values, leaders=leaders, ask=ask, look=member.check.confirm, abort=transactions.abort
    )
    await search.run()


def _other_leader(topics: TopicRegistry, assignment: Assignment, at: TopicPartition) -> int | None:
    topic = topics.get(at.topic)
    if topic is None or at.partition >= topic.partition_count:
        return None
    leader = assignment.leader(topic, at.partition)
    return None if leader is None or leader.node_id == assignment.node.node_id else leader.node_id


def _coordinated_at(topics: TopicRegistry, transactional_id: str) -> TopicPartition:
    count = partition_count(topics, TRANSACTION_STATE_NAME) or 1
    return TopicPartition(TRANSACTION_STATE_NAME, coordinator_partition(transactional_id, count))


def partition_count(topics: TopicRegistry, name: str) -> int:
    """Return 0 for a topic that does not exist."""
    topic = topics.get(name)
    return 0 if topic is None else topic.partition_count


@attrs.frozen(eq=False, repr=False)
class Cleanup:
    """The cleaning tasks of a broker; run its `tasks`."""

    log: Log
    member: ClusterMember
    retention: Retention
    orphans: OrphanCollector
    topic_deleter: TopicDeleter

    @classmethod
    def of(
        cls, settings: Settings, log: Log, topics: TopicRegistry, member: ClusterMember, metrics: Metrics
    ) -> Cleanup:
        """Make the tasks; deleted topics of the last start whose objects waited go on waiting."""
        retention = Retention(
            store=log.views.background,
            deleter=log.deleter,
            examiner=log.reader.examiner,
            partitions=lambda: list(log.partitions.values()),
            set_log_start_offset=topics.set_log_start_offset,
            interval_seconds=settings.retention_check_interval_seconds,
        )
        orphans = OrphanCollector(
            store=log.views.background,
            namespace=log.namespace,
            find_partition=log.partition,
            deleted_topics=lambda: topics.deleted.keys() if member.deletes_topics else (),
            kept_until_ms=lambda topic_id: topics.deleted[topic_id].objects_until_ms,
            on_gone=topics.forget_deleted,
            interval_seconds=settings.orphan_check_interval_seconds,
            grace_seconds=settings.orphan_grace_seconds,
        )
        orphans.register(metrics)
        return cls(log, member, retention, orphans, _topic_deleter(log, topics))

    def bury(self, topic: Topic) -> None:
        """Delete the objects of a deleted topic after its delay, if this broker does that."""
        if self.member.deletes_topics:
            decided = guarded(self.log.views.background).decided()
            buried = BuriedTopic(name=topic.name, topic_id=topic.topic_id, decided=decided)
            self.topic_deleter.bury(buried, topic.config.file_delete_delay_ms)

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        log = self.log
        return [
            partial(expire_producers, log),
            log.deleter.run,
            log.manifest_checkpointer.run,
            self.retention.run,
            partial(log.merger.run, list(log.partitions.values())),
            partial(log.compactor.run, lambda: list(log.partitions.values())),
            self.orphans.run,
            self.topic_deleter.run,
        ]


def _topic_deleter(log: Log, topics: TopicRegistry) -> TopicDeleter:
    deleted = topics.deleted
    deleter = TopicDeleter(delete_objects=log.delete_objects, is_deleted=lambda topic_id: topic_id in deleted)
    now_ms = time.time_ns() // 1_000_000
    for topic_id, topic in deleted.items():
        if topic.objects_until_ms > now_ms:
            deleter.bury(BuriedTopic(name=topic.name, topic_id=topic_id), topic.objects_until_ms - now_ms)
    return deleter
