"""The composition root: builds the components, nests the nurseries, owns the shutdown order. Read this page first.

    Broker.run
    └─ admin HTTP                       answers /healthz and /readyz from the first moment to the last
       └─ leading nursery               metadata and its followers, the log in the bucket, checkpoints, other brokers
          └─ storage nursery            WAL syncer and file preparer, group timers, retention, rewriting, deletions
             └─ flusher nursery         a task per partition that is being flushed, the spiller, reads ahead
                └─ connection nursery   a reader and a writer per connection
                   └─ acceptors

Nesting is the shutdown order: what is outer stops later. On a stop the acceptors end first; connections answer what
they have read, within half of the shutdown timeout; the rest of it is for a last flush; what is not in the bucket then
stays in the write-ahead log. Beside others, half of the timeout is for handing over to them before all that.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from kafscale.api.handling.authentication import Authenticator
from kafscale.api.handling.calls import ListedApi
from kafscale.api.handling.fetch_sessions import FetchSessions
from kafscale.api.handling.gate import Gate
from kafscale.api.handling.internal_topics import ensure_internal_topic
from kafscale.api.handling.quotas import Quotas
from kafscale.api.handling.record_checks import RecordChecks
from kafscale.api.handling.services import Services
from kafscale.api.table import APIS
from kafscale.broker_metrics import register_group_lag
from kafscale.broker_security import BrokerSecurity, open_access, open_security
from kafscale.cluster.acls import AclRegistry
from kafscale.cluster.assignment import Assignment
from kafscale.cluster.brokers.assignment import ClusterAssignment
from kafscale.cluster.brokers.following import Following
from kafscale.cluster.brokers.heartbeats import Connect
from kafscale.cluster.brokers.leading import Leading
from kafscale.cluster.brokers.lines import lines_between
from kafscale.cluster.brokers.membership import Membership
from kafscale.cluster.brokers.moving import ClusterMover
from kafscale.cluster.client_quotas import ClientQuotas
from kafscale.cluster.controller.lead import Lead
from kafscale.cluster.controller.same_store import check_same_store
from kafscale.cluster.controller.starting import start_leading
from kafscale.cluster.coordination import TransactionalOffsets, Transactions
from kafscale.cluster.coordination.elsewhere import Elsewhere
from kafscale.cluster.coordination.group_topics import follow_topics
from kafscale.cluster.group_configs import GroupConfigs
from kafscale.cluster.groups.coordinating.coordinator import GroupCoordinator
from kafscale.cluster.groups.coordinating.keeper import GroupKeeper, InternalOffsetsLog, MoveDestination
from kafscale.cluster.groups.coordinating.led_partitions import LedPartitions
from kafscale.cluster.groups.coordinating.moving import move_groups
from kafscale.cluster.groups.hosted.settings import consumer_group_settings
from kafscale.cluster.groups.settings import GroupSettings
from kafscale.cluster.internal import InternalLog, Leadership
from kafscale.cluster.metadata.base import LocalMetadataStore
from kafscale.cluster.metadata.reserve import RESERVE_NAME, Reserve
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.cluster.node import Endpoint, register_node
from kafscale.cluster.producer_ids import ProducerIds
from kafscale.cluster.scram_users import ScramUsers
from kafscale.cluster.topics.names import CONSUMER_OFFSETS_NAME, TRANSACTION_STATE_NAME
from kafscale.cluster.topics.topics import (
    Topic,
    TopicListener,
    TopicPolicy,
    TopicRegistry,
    leave_unplaced,
)
from kafscale.cluster.transactions.settings import TransactionSettings
from kafscale.cluster.transactions.values import TopicPartition
from kafscale.config import Settings
from kafscale.errors import KafkaError, StartupError, StoreError
from kafscale.log.bucket.orphans import OrphanCollector
from kafscale.log.bucket.topic_deletion import BuriedTopic, TopicDeleter
from kafscale.log.housekeeping import expire_producers
from kafscale.log.log import Log, TopicSpec
from kafscale.log.opening import open_journal, open_log
from kafscale.log.other_logs import check_other_logs
from kafscale.log.recovering import Recovering
from kafscale.log.rewrite.retention import Retention
from kafscale.log.wal.data_directory import lock_data_directory, make_private
from kafscale.log.wal.disk import Disk, RealDisk
from kafscale.metrics import Metrics
from kafscale.server.http.admin import AdminServer
from kafscale.server.kafka.binding import BoundListener, bind
from kafscale.server.kafka.connection import ConnectionMetrics
from kafscale.server.kafka.dispatch import Dispatcher
from kafscale.server.kafka.listener import Acceptor
from kafscale.server.kafka.listener_security import warn_of_listeners
from kafscale.server.token_keys import PublishedKeys
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import guarded
from kafscale.store.opening.opening import open_store
from kafscale.store.opening.probe import startup_errors
from kafscale.store.opening.views import StoreViews

logger = logging.getLogger(__name__)

LOAD_SECONDS = 30.0  # that a start waits for internal partitions to be read
CLOSE_SECONDS = 2.0  # the bound on closing connections to the store at the very end

MakeDispatcher = Callable[[Services, Sequence[ListedApi]], Dispatcher]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StorageParts:
    """What a broker keeps its state in. `views` are those of `store`; without them, all work uses it as it is."""

    store: ObjectStore
    metadata: LocalMetadataStore
    disk: Disk
    views: StoreViews | None = None


@attrs.define(eq=False, repr=False)
class Broker:
    """One broker. `run` it; `listeners` and `admin` have the real ports once it has reported that it is started.

    `make_dispatcher` is where a test puts a dispatcher that fails on purpose. `connect` is what a broker without
    listeners, as in a simulation, connects to others by; without that it takes none of them for dead.
    """

    settings: Settings
    make_dispatcher: Callable[[Services, Sequence[ListedApi]], Dispatcher] = attrs.field(
        default=Dispatcher, kw_only=True
    )
    connect: Connect | None = attrs.field(default=None, kw_only=True)
    metrics: Metrics = attrs.field(factory=Metrics, init=False)
    listeners: Sequence[BoundListener] = attrs.field(factory=list, init=False)
    admin: BoundListener = attrs.field(init=False)
    services: Services = attrs.field(init=False)
    acceptor: Acceptor = attrs.field(init=False)
    security: BrokerSecurity | None = attrs.field(default=None, init=False)
    _token_keys: PublishedKeys = attrs.field(
        default=attrs.Factory(lambda broker: PublishedKeys.of(broker.settings.sasl), takes_self=True), init=False
    )
    _stopping: trio.Event = attrs.field(factory=trio.Event, init=False)
    _not_ready: str | None = attrs.field(default="starting", init=False)

    @property
    def is_ready(self) -> bool:
        """Tell whether clients are served: after the start, and before a stop."""
        return self._not_ready is None

    @property
    def is_stopping(self) -> bool:
        """Tell whether somebody has asked it to stop."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Begin an orderly shutdown; `run` returns when it is done."""
        self._stopping.set()

    async def reload_files(self) -> None:
        """Read certificates and tokens again, for who connects from now on."""
        if self.security is not None:
            await self.security.watch.reload()

    async def run(self, *, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`; reports started when clients can be served.

        Raises StartupError, StorageFailed, Fenced.
        """
        with lock_data_directory(self.settings.data_dir), _storage_directory(self.settings) as directory:
            make_private(directory)
            self.security = open_security(self.settings)
            self.security.register(self.metrics)
            self.admin = await bind("ADMIN", self.settings.admin_listen, option="--admin-listen")
            async with trio.open_nursery() as nursery:
                access = self.security.access
                server = AdminServer(self.metrics, lambda: self._not_ready, lambda: self.services.log, access)
                nursery.start_soon(server.accept, self.admin.sockets)
                nursery.start_soon(self.security.run)
                reserve = Reserve(directory / RESERVE_NAME)
                reserve.release_if_needed()
                opened = await open_store(self.settings, self.metrics)
                disk = RealDisk(directory / "wal")
                try:
                    async with SqliteMetadataStore.open(directory / "metadata.db", reserve=reserve) as metadata:
                        await check_same_store(metadata, self.settings)
                        await self._listen()
                        parts = StorageParts(
                            store=opened.views.background, metadata=metadata, disk=disk, views=opened.views
                        )
                        await self.run_on(parts, task_status=task_status)
                finally:
                    disk.close()
                    with trio.move_on_after(CLOSE_SECONDS, shield=True):
                        await opened.aclose()
                nursery.cancel_scope.cancel()

    async def _listen(self) -> None:
        self.listeners = [
            await bind(each.name, each.address, option="--listen", protocol=self.settings.protocol_of(each))
            for each in self.settings.listeners
        ]
        warn_of_listeners(self.listeners, self.settings.ssl.ssl_client_auth, self.settings.sasl.sasl_mechanisms)

    async def run_on(
        self, parts: StorageParts, *, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve on a store, metadata and disk that are open already, as a simulation gives; otherwise as `run`."""
        self._not_ready = "restoring"
        with startup_errors():
            views = parts.views or StoreViews.alike(parts.store)
            advertised = _advertised(self.settings, self.listeners)
            connect = lines_between(self.settings) if self.listeners else self.connect
            lead = await start_leading(self.settings, views, parts.metadata, advertised, connect)
        lead.register(self.metrics)
        async with trio.open_nursery() as leading:
            await leading.start(lead.run)
            log = await self._build(lead, parts.disk)
            services = self.services
            configured = services.client_quotas, services.group_configs, services.scram_users, services.acls
            for registry in (services.topics, *configured, services.producer_ids):
                leading.start_soon(registry.run)
            leading.start_soon(self._token_keys.run)
            await self._restore(lead, log, parts.disk)
            await self._run_storage(lead, log, task_status)
            await self._last_checkpoints(lead, log)
            await self._leave(lead)
            leading.cancel_scope.cancel()

    async def _build(self, lead: Lead, disk: Disk) -> Log:
        """All components but those of the network."""
        settings, metadata = self.settings, lead.metadata
        node = await register_node(
            metadata,
            node_id=settings.broker_id,
            broker_epoch=lead.epoch,
            cluster_id=settings.cluster_id,
            advertised=_advertised(settings, self.listeners),
            rack=settings.rack,
        )
        several = lead.several
        producer_ids = ProducerIds(metadata, lead.epoch)
        if several is not None:
            producer_ids.is_beside = several.is_beside
        log = open_log(
            settings,
            lead.views,
            open_journal(settings, disk, lead.journal, self.metrics, None if several is None else several.lease),
            broker_epoch=lead.epoch,
            metrics=self.metrics,
            check_lead=lead.check.confirm,
            check_lead_lately=lead.check.confirm_lately,
            was_allocated=producer_ids.was_allocated,
            is_alone=several is None,
        )
        draining = trio.Event()
        client_quotas = ClientQuotas(metadata)
        group_configs = GroupConfigs(metadata, consumer_group_settings(settings))
        scram_users = ScramUsers.of(settings, metadata)
        acls = AclRegistry(metadata)
        access = open_access(settings, acls)
        place = leave_unplaced if several is None else several.place
        topics = TopicRegistry(store=metadata, policy=TopicPolicy.of(settings), place=place)
        assignment = Assignment(node) if several is None else ClusterAssignment(node, several.state, topics.get)
        offsets_partition_count = partial(_partition_count, topics, CONSUMER_OFFSETS_NAME)
        internal, leadership = InternalLog(log), Leadership(log)
        groups = GroupCoordinator(
            InternalOffsetsLog(internal, CONSUMER_OFFSETS_NAME),
            GroupSettings.of(settings),
            draining=draining,
            consumer_settings=group_configs.settings,
            overrides=group_configs.overrides,
            has_topic=lambda name: topics.get(name) is not None,
            led=LedPartitions(offsets_partition_count),
        )
        group_keeper = GroupKeeper(groups, offsets_partition_count)
        leadership.keepers[CONSUMER_OFFSETS_NAME] = group_keeper
        internal.on_end[CONSUMER_OFFSETS_NAME] = group_keeper.end_transaction
        quotas = Quotas(settings=settings, client_quotas=client_quotas, metrics=self.metrics)
        transactions = open_transactions(
            settings,
            topics,
            internal,
            producer_ids=producer_ids,
            check_lead=lead.check.confirm,
            elsewhere=None if several is None else several.calls.about_transactions(assignment, topics),
        )
        transactions.register(self.metrics)
        leadership.keepers[transactions.topic] = transactions
        self.services = Services(
            settings=settings,
            metrics=self.metrics,
            draining=draining,
            api_versions=[(api.key, api.min_version, api.max_version) for api in APIS],
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
            group_configs=group_configs,
            scram_users=scram_users,
            authenticator=Authenticator(
                settings=settings.sasl, users=scram_users, metrics=self.metrics, token_keys=self._token_keys
            ),
            acls=acls,
            access=access,
            quotas=quotas,
            gate=Gate(quotas=quotas, access=access),
            record_checks=RecordChecks(log.reader.unpacking),
            check_lead=lead.check.confirm,
            catch_up=trio.lowlevel.checkpoint if several is None else lead.catch_up,
            mover=None if several is None else ClusterMover(several.state, several.writer),
            membership=None if several is None else Membership(several.state),
            wait_awake=None if several is None else lead.wakefulness.wait,
            has_led_lately=(lambda: True) if several is None else lead.has_led_lately,
            heard_of=None if several is None else several.heartbeats.heard,
        )
        self.services.following = self._following(lead, log)
        self.services.groups.state_bytes.register(self.metrics)
        register_group_lag(self.services)
        return log

    async def _restore(self, lead: Lead, log: Log, disk: Disk) -> None:
        """Topics, what the bucket holds, and what only the write-ahead log holds."""
        services = self.services
        await services.topics.load()
        follow_topics(services.groups.topics, services.topics)
        await services.client_quotas.load()
        await services.group_configs.load()
        await services.scram_users.load()
        if any(self.settings.protocol_of(listener).uses_sasl for listener in self.settings.listeners):
            services.scram_users.check_readable()
            services.authenticator.prepare()
        await services.acls.load()
        for topic in services.topics.all():
            log.open_topic(topic_spec(services, topic))
        await lead.end_earlier(log.partitions.keys())
        await log.restore(*([] if lead.several is None else [lead.several.begun]))
        await log.replay(*([] if lead.several is None else [lead.several.is_lost]))
        await check_other_logs(log, self.settings.durability, lead.replay_earlier, disk)
        await self._decide(lead, log)
        await services.producer_ids.begin(log.producer_ids())

    async def _decide(self, lead: Lead, log: Log) -> None:
        """Tell all later brokers what this one has found. From then on any of it may be served.

        One that has claimed meanwhile may have found something else, and need not have seen this.
        """
        with startup_errors():
            if lead.several is not None:
                await lead.several.decide(list(log.partitions.values()))
            await log.manifest_checkpointer.decide()
            await lead.check.confirm()

    async def _move_groups(self, lead: Lead) -> None:
        """Have `__consumer_offsets` hold what earlier versions kept in the metadata."""
        services = self.services

        async def make_topic() -> None:
            if await ensure_internal_topic(services, CONSUMER_OFFSETS_NAME) is None:
                raise StartupError(f"{CONSUMER_OFFSETS_NAME} can't be made, which the consumer groups are to move to")

        destination = MoveDestination(
            internal=services.internal,
            topic=CONSUMER_OFFSETS_NAME,
            count=partial(_partition_count, services.topics, CONSUMER_OFFSETS_NAME),
            make_topic=make_topic,
        )
        with startup_errors():
            if await move_groups(lead.metadata, destination, now_ms=time.time_ns() // 1_000_000):
                await self._last_checkpoints(lead, services.log)

    async def _wait_loaded(self) -> None:
        """Wait for some time until all groups are known; clients that ask too early are told to try again."""
        with trio.move_on_after(LOAD_SECONDS) as waiting:
            await self.services.leadership.wait_loaded()
        if waiting.cancelled_caught:
            logger.warning("%d internal partitions are still being read", self.services.leadership.loading_count)

    async def _last_checkpoints(self, lead: Lead, log: Log) -> None:
        with trio.move_on_after(CLOSE_SECONDS):
            try:
                await lead.write_last_checkpoint()
                await log.manifest_checkpointer.write_if_changed()
            except StoreError as exc:
                logger.warning("not everything has a checkpoint of the shutdown: %s", exc)

    async def _leave(self, lead: Lead) -> None:
        if lead.several is None:
            return
        with trio.move_on_after(CLOSE_SECONDS):
            try:
                await lead.several.leaving.tell_stopped()
            except (StoreError, KafkaError) as exc:
                logger.warning("the other brokers could not be told of the shutdown: %s", exc)

    # ---- the nurseries, outermost first -----------------------------------------------------------------------

    async def _run_storage(self, lead: Lead, log: Log, task_status: trio.TaskStatus[Broker]) -> None:
        services = self.services
        async with trio.open_nursery() as storage:
            for task in log.journal.tasks:
                await storage.start(task)
            await storage.start(services.groups.run)
            await storage.start(services.transactions.run)
            storage.start_soon(expire_producers, log)
            storage.start_soon(log.deleter.run)
            storage.start_soon(log.manifest_checkpointer.run)
            storage.start_soon(self._retention(log).run)
            storage.start_soon(log.merger.run, list(log.partitions.values()))
            storage.start_soon(log.compactor.run, lambda: list(log.partitions.values()))
            storage.start_soon(self._orphan_collector(lead, log).run)
            topic_deleter = self._topic_deleter(log)
            storage.start_soon(topic_deleter.run)
            leading = self._leading(lead, log)

            def delete_topic(topic: Topic) -> None:
                log.close_topic(topic.name)
                services.groups.forget_topic(topic.name)
                if not lead.deletes_topics:
                    return
                decided = guarded(log.views.background).decided()
                buried = BuriedTopic(name=topic.name, topic_id=topic.topic_id, decided=decided)
                topic_deleter.bury(buried, topic.config.file_delete_delay_ms)

            def open_topic(topic: Topic) -> None:
                spec = topic_spec(services, topic)
                if leading is None:
                    log.open_topic(spec)
                    return
                log.open_topic(attrs.evolve(spec, leader_epochs={}))
                leading.note([topic.topic_id])

            services.topics.follow(TopicListener(on_created=open_topic, on_changed=open_topic, on_deleted=delete_topic))
            await self._run_flusher(lead, log, leading, task_status)
            storage.cancel_scope.cancel()

    async def _abort_hanging(self, log: Log) -> None:
        await self.services.leadership.wait_loaded()
        if not self.services.assignment.is_alone:
            return  # what is unknown here may be known to another coordinator
        await self.services.transactions.abort_hanging(list(log.partitions.values()))

    def _retention(self, log: Log) -> Retention:
        return Retention(
            store=log.views.background,
            deleter=log.deleter,
            examiner=log.reader.examiner,
            partitions=lambda: list(log.partitions.values()),
            set_log_start_offset=self.services.topics.set_log_start_offset,
            interval_seconds=self.settings.retention_check_interval_seconds,
        )

    def _topic_deleter(self, log: Log) -> TopicDeleter:
        """Make the deleter of topics' objects, with those that still waited when the broker before this one ended."""
        deleted = self.services.topics.deleted
        deleter = TopicDeleter(delete_objects=log.delete_objects, is_deleted=lambda topic_id: topic_id in deleted)
        now_ms = time.time_ns() // 1_000_000
        for topic_id, topic in deleted.items():
            if topic.objects_until_ms > now_ms:
                deleter.bury(BuriedTopic(name=topic.name, topic_id=topic_id), topic.objects_until_ms - now_ms)
        return deleter

    def _leading(self, lead: Lead, log: Log) -> Leading | None:
        services = self.services
        if lead.several is None:
            return None
        recovering: Recovering | None = None
        if lead.journal is not None:
            recovering = Recovering(log=log, journal=lead.journal, streams=lead.several.streams)
        return Leading(
            broker_id=self.settings.broker_id,
            incarnation=lead.epoch,
            recovering=recovering,
            state=lead.several.state,
            writer=lead.several.writer,
            log=log,
            find_topic=services.topics.by_id,
            spec=partial(topic_spec, services),
        )

    def _following(self, lead: Lead, log: Log) -> Following | None:
        services = self.services
        if lead.several is None:
            return None
        return Following(
            broker_id=self.settings.broker_id,
            state=lead.several.state,
            log=log,
            spec=partial(topic_spec, services),
            log_start_offsets=services.topics.log_start_offsets,
            refresh=lead.several.controller.metadata.refresh,
        )

    def _orphan_collector(self, lead: Lead, log: Log) -> OrphanCollector:
        topics = self.services.topics
        collector = OrphanCollector(
            store=log.views.background,
            namespace=log.namespace,
            find_partition=log.partition,
            deleted_topics=lambda: topics.deleted.keys() if lead.deletes_topics else (),
            kept_until_ms=lambda topic_id: topics.deleted[topic_id].objects_until_ms,
            on_gone=topics.forget_deleted,
            interval_seconds=self.settings.orphan_check_interval_seconds,
            grace_seconds=self.settings.orphan_grace_seconds,
        )
        collector.register(self.metrics)
        return collector

    async def _run_flusher(
        self, lead: Lead, log: Log, leading: Leading | None, task_status: trio.TaskStatus[Broker]
    ) -> None:
        async with trio.open_nursery() as flusher:
            await flusher.start(log.flusher.run)
            if log.spiller is not None:
                flusher.start_soon(log.spiller.run)
            flusher.start_soon(log.reader.run)
            await self._move_groups(lead)
            await flusher.start(self.services.leadership.run)
            if leading is not None:
                await flusher.start(leading.run)
            flusher.start_soon(self._abort_hanging, log)
            await self._wait_loaded()
            if lead.several is not None:
                lead.several.controller.serving.set()
            stop_by = await self._run_connections(lead, log, task_status)
            with trio.CancelScope(deadline=stop_by) as last_flush:
                await log.journal.settle()
                await log.flusher.flush_all()
            if last_flush.cancelled_caught:
                logger.warning("shutting down with %d bytes not in the bucket yet", log.tail_bytes())
            flusher.cancel_scope.cancel()

    async def _run_connections(self, lead: Lead, log: Log, task_status: trio.TaskStatus[Broker]) -> float:
        """Serve until the stop. Returns the time by which everything must be over."""
        acceptor = self.acceptor = Acceptor(
            dispatcher=self.make_dispatcher(self.services, APIS),
            pool=log.pool,
            limits=self.settings.limits,
            metrics=ConnectionMetrics(),
            tls=self.security.tls if self.security is not None else None,
        )
        acceptor.register(self.metrics)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as acceptors:
                acceptors.start_soon(acceptor.accept, self.listeners, connections)
                acceptors.start_soon(acceptor.dispatcher.load_all)
                self._not_ready = None
                task_status.started(self)
                await self._stopping.wait()
                self._not_ready = "shutting down"
                logger.info("shutting down")
                stop_by = trio.current_time() + self.settings.shutdown_timeout_seconds
                await self._hand_over(lead, _half_way(stop_by))
                acceptors.cancel_scope.cancel()
            connections.cancel_scope.deadline = _half_way(stop_by)
            self.services.drain()
            acceptor.drain()
        return stop_by

    async def _hand_over(self, lead: Lead, until: float) -> None:
        """Have others lead what this broker leads, where there are others; clients are served meanwhile."""
        if lead.several is None:
            return
        with trio.CancelScope(deadline=until) as scope:
            await lead.several.leaving.run()
        if scope.cancelled_caught:
            logger.warning("there was no time for others to lead what this broker leads: it waits for the next start")


def _half_way(until: float) -> float:
    """Return the time when half of the time is over that is left."""
    now = trio.current_time()
    return now + (until - now) / 2


@contextmanager
def _storage_directory(settings: Settings) -> Iterator[Path]:
    """Give the directory of metadata and WAL.

    With a store that forgets everything at exit they must not outlive it either.
    """
    directory = settings.data_dir
    if settings.store.scheme != "memory":
        yield directory
        return
    directory = directory / "memory"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _partition_count(topics: TopicRegistry, name: str) -> int:
    topic = topics.get(name)
    return 0 if topic is None else topic.partition_count


def _advertised(settings: Settings, bound: Sequence[BoundListener]) -> Mapping[str, Endpoint | None]:
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


def open_transactions(
    settings: Settings,
    topics: TopicRegistry,
    internal: InternalLog,
    *,
    producer_ids: ProducerIds,
    check_lead: Callable[[], Awaitable[None]],
    elsewhere: Elsewhere | None,
) -> Transactions:
    """Make the coordinators of transactional ids, which know of none yet."""

    def exists(partition: TopicPartition) -> bool:
        return partition.partition < _partition_count(topics, partition.topic)

    return Transactions(
        internal=internal,
        settings=TransactionSettings.of(settings),
        topic=TRANSACTION_STATE_NAME,
        partition_count=partial(_partition_count, topics, TRANSACTION_STATE_NAME),
        exists=exists,
        allocate_producer_id=producer_ids.allocate,
        check_lead=check_lead,
        elsewhere=elsewhere,
        check_interval_seconds=settings.transaction_cleanup_interval_ms / 1000,
    )


def topic_spec(services: Services, topic: Topic) -> TopicSpec:
    """Make what the log is told of a topic."""
    return TopicSpec(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_count=topic.partition_count,
        config=topic.config,
        log_start_offsets=services.topics.log_start_offsets(topic.topic_id),
        leader_epochs=services.assignment.led_here(topic),
    )
