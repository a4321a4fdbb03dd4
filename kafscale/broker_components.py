"""Which components a broker has, and what each of them is given: the constructors, and nothing that runs.

A part of `broker`, which owns the nurseries that they run in.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import trio

from kafscale.api.handling.access import Access
from kafscale.api.handling.authentication import Authenticator
from kafscale.api.handling.fetch_sessions import FetchSessions
from kafscale.api.handling.gate import Gate
from kafscale.api.handling.quotas import Quotas
from kafscale.api.handling.record_checks import RecordChecks
from kafscale.api.handling.services import Services, refuse_senders
from kafscale.api.table import APIS
from kafscale.broker_metrics import register_group_lag
from kafscale.broker_security import open_access
from kafscale.cluster.coordinator import InternalLog, Leadership
from kafscale.cluster.coordinator.partitioning import coordinator_partition
from kafscale.cluster.groups.common.settings import GroupSettings
from kafscale.cluster.groups.configs import GroupConfigs
from kafscale.cluster.groups.consumer_settings import consumer_group_settings
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.groups.keeper import GroupKeeper, InternalOffsetsLog
from kafscale.cluster.groups.led_partitions import LedPartitions
from kafscale.cluster.membership.assignment import Assignment
from kafscale.cluster.membership.cluster_assignment import ClusterAssignment
from kafscale.cluster.membership.leading.following import Following
from kafscale.cluster.membership.leading.leading import Leading
from kafscale.cluster.membership.node import Endpoint, register_node
from kafscale.cluster.membership.placement.administration import Membership
from kafscale.cluster.membership.placement.cluster_mover import ClusterMover
from kafscale.cluster.membership.start.lead import Lead
from kafscale.cluster.membership.start.wal_extents import MetadataExtents
from kafscale.cluster.registries.acls import AclRegistry
from kafscale.cluster.registries.client_quotas import ClientQuotas
from kafscale.cluster.registries.dynamic_configs import BrokerConfigs
from kafscale.cluster.registries.producer_ids import ProducerIds
from kafscale.cluster.registries.scram_users import ScramUsers
from kafscale.cluster.registries.topic_configs import BrokerDefaults
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME, TRANSACTION_STATE_NAME
from kafscale.cluster.registries.topics import Topic, TopicPolicy, TopicRegistry, leave_unplaced
from kafscale.cluster.transactions.hanging import Knowledge
from kafscale.cluster.transactions.hanging_search import CoordinatedBy, HangingSearch
from kafscale.cluster.transactions.offset_commits import TransactionalOffsets
from kafscale.cluster.transactions.remote_coordinators import Elsewhere
from kafscale.cluster.transactions.service import Transactions
from kafscale.cluster.transactions.settings import TransactionSettings
from kafscale.cluster.transactions.values import TopicPartition
from kafscale.config import Settings
from kafscale.log.bucket.deletion import BuriedTopic, TopicDeleter
from kafscale.log.bucket.orphans import OrphanCollector
from kafscale.log.hand_over import Recovering
from kafscale.log.log import Log, TopicSpec
from kafscale.log.opening import open_journal, open_log
from kafscale.log.rewrite.retention import Retention
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.local_wal import LocalLog
from kafscale.metrics import Metrics
from kafscale.server.kafka.binding import BoundListener
from kafscale.server.token_keys import PublishedKeys
from kafscale.wire.messages.cluster import ApiVersion


async def build_services(
    settings: Settings,
    lead: Lead,
    disk: Disk,
    *,
    advertised: Mapping[str, Endpoint | None],
    token_keys: PublishedKeys,
    metrics: Metrics,
) -> Services:
    """Make all components but those of the network. Beside registering this broker, nothing is read or written yet."""
    metadata, several = lead.metadata, lead.several
    node = await register_node(
        metadata,
        node_id=settings.broker_id,
        broker_epoch=lead.epoch,
        cluster_id=settings.cluster_id,
        advertised=advertised,
        rack=settings.rack,
    )
    producer_ids = ProducerIds(metadata, lead.epoch)
    log = _open_log(settings, lead, disk, producer_ids, metrics)
    producer_ids.remembered = log.producer_ids
    internal, leadership, draining = InternalLog(log), Leadership(log), trio.Event()
    client_quotas, group_configs = ClientQuotas(metadata), GroupConfigs(metadata, consumer_group_settings(settings))
    scram_users, acls = ScramUsers.of(settings, metadata), AclRegistry(metadata)
    access = open_access(settings, acls)
    quotas = Quotas(settings=settings, client_quotas=client_quotas, metrics=metrics)
    topics = TopicRegistry(
        store=metadata, policy=TopicPolicy.of(settings), place=leave_unplaced if several is None else several.place
    )
    assignment = Assignment(node) if several is None else ClusterAssignment(node, several.state, topics.get)
    groups = _open_groups(settings, topics, group_configs, internal, leadership, draining=draining, access=access)
    transactions = _open_transactions(settings, lead, topics, assignment, internal, producer_ids)
    leadership.keepers[transactions.topic] = transactions
    services = Services(
        settings=settings,
        metrics=metrics,
        draining=draining,
        api_versions=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in APIS
        ],
        node=node,
        assignment=assignment,
        topics=topics,
        groups=groups,
        producer_ids=producer_ids,
        log=log,
        internal=internal,
        leadership=leadership,
        transactions=transactions,
        transactional_offsets=TransactionalOffsets(
            internal=internal, groups=groups, transactions=transactions, topic=CONSUMER_OFFSETS_NAME
        ),
        fetch_sessions=FetchSessions(settings.limits.max_fetch_sessions_count),
        client_quotas=client_quotas,
        broker_configs=BrokerConfigs(metadata, settings),
        group_configs=group_configs,
        scram_users=scram_users,
        authenticator=Authenticator(settings=settings.sasl, users=scram_users, metrics=metrics, token_keys=token_keys),
        acls=acls,
        access=access,
        quotas=quotas,
        gate=Gate(quotas=quotas, access=access),
        record_checks=RecordChecks(log.reader.unpacking),
        check_lead=lead.check.confirm,
        catch_up=trio.lowlevel.checkpoint if several is None else lead.catch_up,
        mover=None if several is None else ClusterMover(several.state, several.writer),
        membership=None if several is None else Membership(several.state, lead.catch_up),
        wait_awake=None if several is None else lead.wakefulness.wait,
        has_led_lately=(lambda: True) if several is None else lead.has_led_lately,
        heard_of=None if several is None else several.heard,
        check_sender=refuse_senders if several is None else several.senders.check,
        balance=None if several is None else several.balance,
    )
    if several is not None:
        several.balance.meter.partitions = log.partitions.values
    services.following = _following(services, lead)
    services.broker_configs.follow(partial(_use_broker_configs, services))
    transactions.register(metrics)
    leadership.register(metrics)
    groups.state_bytes.register(metrics)
    register_group_lag(services)
    return services


def _use_broker_configs(services: Services) -> None:
    """Put in force what was set on the broker at run time; the acceptor takes limits of connections by itself."""
    settings, compactor = services.broker_configs.settings, services.log.compactor
    services.topics.use_defaults(BrokerDefaults.of(settings, services.broker_configs.dynamic))
    compactor.interval_seconds = settings.compaction_check_interval_seconds
    compactor.map_bytes = settings.log_cleaner_dedupe_buffer_bytes


def _open_log(settings: Settings, lead: Lead, disk: Disk, producer_ids: ProducerIds, metrics: Metrics) -> Log:
    return open_log(
        settings,
        lead.views,
        open_journal(settings, local_log(lead, disk), lead.journal, metrics),
        broker_epoch=lead.epoch,
        metrics=metrics,
        check_lead=lead.check.confirm,
        check_lead_lately=lead.check.confirm_lately,
        is_withheld=producer_ids.is_withheld,
        is_alone=lead.several is None,
    )


def local_log(lead: Lead, disk: Disk) -> LocalLog:
    """Return what a log on the local disk is made of."""
    lease = None if lead.several is None else lead.several.lease
    return LocalLog(disk=disk, lease=lease, extents=MetadataExtents(lead.metadata.local))


def _open_groups(
    settings: Settings,
    topics: TopicRegistry,
    configs: GroupConfigs,
    internal: InternalLog,
    leadership: Leadership,
    *,
    draining: trio.Event,
    access: Access,
) -> GroupCoordinator:
    """Make the coordinators of groups, which know of none yet."""
    count = partial(partition_count, topics, CONSUMER_OFFSETS_NAME)
    groups = GroupCoordinator(
        InternalOffsetsLog(internal, CONSUMER_OFFSETS_NAME),
        GroupSettings.of(settings),
        draining=draining,
        consumer_settings=configs.settings,
        overrides=configs.overrides,
        has_topic=lambda name: topics.get(name) is not None,
        led=LedPartitions(count),
        rights=access.authorizer,
    )
    keeper = GroupKeeper(groups, count)
    leadership.keepers[CONSUMER_OFFSETS_NAME] = keeper
    internal.on_end[CONSUMER_OFFSETS_NAME] = keeper.end_transaction
    return groups


def _open_transactions(
    settings: Settings,
    lead: Lead,
    topics: TopicRegistry,
    assignment: Assignment,
    internal: InternalLog,
    producer_ids: ProducerIds,
) -> Transactions:
    """Make the coordinators of transactional ids, which know of none yet."""

    def exists(partition: TopicPartition) -> bool:
        return partition.partition < partition_count(topics, partition.topic)

    return Transactions(
        internal=internal,
        settings=TransactionSettings.of(settings),
        topic=TRANSACTION_STATE_NAME,
        partition_count=partial(partition_count, topics, TRANSACTION_STATE_NAME),
        exists=exists,
        allocate_producer_id=producer_ids.allocate,
        check_lead=lead.check.confirm,
        elsewhere=_elsewhere(lead, topics, assignment),
        check_interval_seconds=settings.transaction_cleanup_interval_ms / 1000,
    )


def _elsewhere(lead: Lead, topics: TopicRegistry, assignment: Assignment) -> Elsewhere | None:
    """Make what asks the other brokers of transactions; None for a broker alone."""
    if lead.several is None:
        return None

    def leader_of(at: TopicPartition) -> int | None:
        topic = topics.get(at.topic)
        if topic is None or at.partition >= topic.partition_count:
            return None
        leader = assignment.leader(topic, at.partition)
        return None if leader is None or leader.node_id == assignment.node.node_id else leader.node_id

    def coordinated_at(transactional_id: str) -> TopicPartition:
        count = partition_count(topics, TRANSACTION_STATE_NAME) or 1
        return TopicPartition(TRANSACTION_STATE_NAME, coordinator_partition(transactional_id, count))

    return Elsewhere(ask=lead.several.calls.ask, leader=leader_of, coordinated_at=coordinated_at)


def open_retention(services: Services) -> Retention:
    """Make what deletes by age and size."""
    log = services.log
    return Retention(
        store=log.views.background,
        deleter=log.deleter,
        examiner=log.reader.examiner,
        partitions=lambda: list(log.partitions.values()),
        set_log_start_offset=services.topics.set_log_start_offset,
        interval_seconds=services.settings.retention_check_interval_seconds,
    )


def open_topic_deleter(services: Services) -> TopicDeleter:
    """Make the deleter of topics' objects, with those that still waited when the broker before this one ended."""
    deleted = services.topics.deleted
    deleter = TopicDeleter(delete_objects=services.log.delete_objects, is_deleted=lambda topic_id: topic_id in deleted)
    now_ms = time.time_ns() // 1_000_000
    for topic_id, topic in deleted.items():
        if topic.objects_until_ms > now_ms:
            deleter.bury(BuriedTopic(name=topic.name, topic_id=topic_id), topic.objects_until_ms - now_ms)
    return deleter


def open_orphan_collector(services: Services, lead: Lead) -> OrphanCollector:
    """Make what deletes objects that nothing names."""
    log, topics, settings = services.log, services.topics, services.settings
    collector = OrphanCollector(
        store=log.views.background,
        namespace=log.namespace,
        find_partition=log.partition,
        deleted_topics=lambda: topics.deleted.keys() if lead.deletes_topics else (),
        kept_until_ms=lambda topic_id: topics.deleted[topic_id].objects_until_ms,
        on_gone=topics.forget_deleted,
        interval_seconds=settings.orphan_check_interval_seconds,
        grace_seconds=settings.orphan_grace_seconds,
    )
    collector.register(services.metrics)
    return collector


def open_hanging_search(services: Services, lead: Lead) -> HangingSearch | None:
    """Make what ends transactions that no coordinator knows of; None for a broker alone, which knows all of them."""
    transactions = services.transactions
    elsewhere = transactions.elsewhere
    if elsewhere is None:
        return None

    def leaders() -> Sequence[CoordinatedBy | None]:
        topic = services.topics.get(TRANSACTION_STATE_NAME)
        found = () if topic is None else services.assignment.leaders(topic)
        return [None if each is None else CoordinatedBy(each.node_id, each.epoch) for each in found]

    async def ask(broker_id: int, producer_ids: Collection[int]) -> Knowledge:
        if broker_id == services.node.node_id:
            return await transactions.known(producer_ids)
        return await elsewhere.known(broker_id, producer_ids)

    return HangingSearch(
        partitions=services.log.partitions.values,
        leaders=leaders,
        ask=ask,
        look=lead.check.confirm,
        abort=transactions.abort,
    )


def open_leading(services: Services, lead: Lead) -> Leading | None:
    """Make what acquires and releases partitions; None for a broker that shares its bucket with no other."""
    if lead.several is None:
        return None
    recovering: Recovering | None = None
    if lead.journal is not None:
        recovering = Recovering(log=services.log, journal=lead.journal, streams=lead.several.streams)
    return Leading(
        broker_id=services.settings.broker_id,
        incarnation=lead.epoch,
        recovering=recovering,
        state=lead.several.state,
        writer=lead.several.writer,
        beginnings=lead.several.beginnings,
        log=services.log,
        find_topic=services.topics.by_id,
        spec=partial(topic_spec, services),
        tell=lead.several.telling.tell,
        told=lead.several.told,
        look=partial(lead.check.confirm_lately, 2 * lead.watch_seconds),
    )


def _following(services: Services, lead: Lead) -> Following | None:
    if lead.several is None:
        return None
    return Following(
        broker_id=services.settings.broker_id,
        state=lead.several.state,
        log=services.log,
        spec=partial(topic_spec, services),
        log_start_offsets=services.topics.log_start_offsets,
        refresh=lead.check.confirm,
    )


def partition_count(topics: TopicRegistry, name: str) -> int:
    """Return 0 for a topic that is not there."""
    topic = topics.get(name)
    return 0 if topic is None else topic.partition_count


def topic_spec(services: Services, topic: Topic) -> TopicSpec:
    """Make what the log is told of a topic."""
    return TopicSpec(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_count=topic.partition_count,
        config=topic.config,
        log_start_offsets=services.topics.log_start_offsets(topic.topic_id),
        lost_offsets=services.topics.lost_offsets(topic.topic_id),
        leader_epochs=services.assignment.led_here(topic),
    )


def advertised_endpoints(settings: Settings, bound: Sequence[BoundListener]) -> Mapping[str, Endpoint | None]:
    """Return what clients of each listener are told: what was set, else its own address, unless that is a wildcard."""
    ports = {each.name: each.port for each in bound}
    found: dict[str, Endpoint | None] = {
        listener.name: None
        if listener.is_wildcard
        else Endpoint(listener.host, ports.get(listener.name, listener.port))
        for listener in settings.listeners
    }
    for listener in settings.advertised_listeners:
        found[listener.name] = Endpoint(host=listener.host, port=listener.port)
    return found
