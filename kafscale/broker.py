"""The composition root: nests the nurseries and owns the shutdown order. Read this page first.

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

`broker_components` builds what runs here, `broker_security` what listeners are secured by.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from kafscale.api.handling.calls import ListedApi
from kafscale.api.handling.services import Services
from kafscale.api.table import APIS
from kafscale.broker_components import (
    advertised_endpoints,
    build_services,
    local_log,
    open_hanging_search,
    open_leading,
    open_orphan_collector,
    open_retention,
    open_topic_deleter,
    topic_spec,
)
from kafscale.broker_security import BrokerSecurity, open_security
from kafscale.cluster.groups.follow_topics import follow_topics
from kafscale.cluster.membership.leading.leading import Leading
from kafscale.cluster.membership.node import Endpoint
from kafscale.cluster.membership.peers.heartbeats import Connect
from kafscale.cluster.membership.peers.peer_connections import lines_between, warn_of_no_lines
from kafscale.cluster.membership.start.end_cause import cause_of_end
from kafscale.cluster.membership.start.lead import Lead
from kafscale.cluster.membership.start.same_store import check_same_store
from kafscale.cluster.membership.start.starting import start_leading
from kafscale.cluster.metadata.base import LocalMetadataStore
from kafscale.cluster.metadata.reserve import RESERVE_NAME, Reserve
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.cluster.registries.topics import Topic, TopicListener
from kafscale.config import Durability, Settings
from kafscale.errors import KafkaError, StoreError
from kafscale.log.bucket.deletion import BuriedTopic
from kafscale.log.log import Log, expire_producers
from kafscale.log.other_logs import check_other_logs
from kafscale.log.replaying import NotOpen
from kafscale.log.wal.data_directory import (
    METADATA_NAME,
    WAL_NAME,
    lock_data_directory,
    make_private,
    warn_of_lost_metadata,
)
from kafscale.log.wal.disk import Disk, RealDisk
from kafscale.log.wal.journal import Journal
from kafscale.metrics import Metrics
from kafscale.server.http.admin import AdminServer
from kafscale.server.kafka.binding import BoundListener, bind, open_listener, warn_of_listeners
from kafscale.server.kafka.connection import ConnectionMetrics
from kafscale.server.kafka.dispatch import Dispatcher
from kafscale.server.kafka.listener import Acceptor
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

    `connections` is the nursery that connections run in, so that an error of one of them ends the broker.
    `make_dispatcher` is where a test puts a dispatcher that fails on purpose. `connect` is what a broker without
    listeners, as in a simulation, connects to others by; without that it takes none of them for dead.
    """

    settings: Settings
    make_dispatcher: MakeDispatcher = attrs.field(default=Dispatcher, kw_only=True)
    connect: Connect | None = attrs.field(default=None, kw_only=True)
    metrics: Metrics = attrs.field(factory=Metrics, init=False)
    listeners: Sequence[BoundListener] = attrs.field(factory=list, init=False)
    admin: BoundListener = attrs.field(init=False)
    services: Services = attrs.field(init=False)
    acceptor: Acceptor = attrs.field(init=False)
    connections: trio.Nursery = attrs.field(init=False)
    security: BrokerSecurity | None = attrs.field(default=None, init=False)
    _token_keys: PublishedKeys = attrs.field(
        default=attrs.Factory(lambda broker: PublishedKeys.of(broker.settings.sasl), takes_self=True), init=False
    )
    _serving: trio.Event = attrs.field(factory=trio.Event, init=False)
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
        """Read certificates, tokens and logins again, for connections from now on."""
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
                warn_of_lost_metadata(directory)
                disk = RealDisk(directory / WAL_NAME)
                try:
                    async with SqliteMetadataStore.open(directory / METADATA_NAME, reserve=reserve) as metadata:
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
        self.listeners = [await open_listener(each, self.settings) for each in self.settings.listeners]
        warn_of_listeners(self.listeners, self.settings.ssl.ssl_client_auth, self.settings.sasl.sasl_mechanisms)

    async def run_on(
        self, parts: StorageParts, *, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve on a store, metadata and disk that are open already, as a simulation gives; otherwise as `run`."""
        self._not_ready = "restoring"
        with startup_errors():
            views = parts.views or StoreViews.alike(parts.store)
            advertised = advertised_endpoints(self.settings, self.listeners)
            between = None if self.security is None else self.security.between
            connect = lines_between(self.settings, between) if self.listeners else self.connect
            lead = await start_leading(self.settings, views, parts.metadata, advertised, connect)
            if lead.several is not None and self.listeners and connect is None:
                warn_of_no_lines(between)
        lead.register(self.metrics)
        try:
            await self._run_leading(lead, parts.disk, advertised, task_status)
        except Exception as exc:
            self._not_ready = "ended by an error"
            cause = await cause_of_end(lead.check, exc, lambda: lead.several is not None and not self.is_stopping)
            if cause is exc:
                raise
            raise cause from exc

    async def _restore(self, lead: Lead, log: Log, disk: Disk) -> Sequence[Topic]:
        """Topics, what the bucket holds, and what only the write-ahead log holds; returns the topics that are open."""
        services = self.services
        await services.broker_configs.load()  # before topics, whose defaults are in it
        await services.topics.load()
        follow_topics(services.groups.topics, services.topics)
        await services.client_quotas.load()
        await services.group_configs.load()
        await services.scram_users.load()
        if any(self.settings.protocol_of(listener).uses_sasl for listener in self.settings.listeners):
            services.scram_users.check_readable()
            services.authenticator.prepare()
        await services.acls.load()
        opened = services.topics.all()
        for topic in opened:
            log.open_topic(topic_spec(services, topic))
        await self._find(lead, log, disk)
        await self._decide(lead, log)
        await services.producer_ids.begin()
        return opened

    async def _find(self, lead: Lead, log: Log, disk: Disk) -> None:
        """Bring back what the bucket and the write-ahead log hold of what is open.

        Others that lead it by now, as this start takes long, may delete what this one is about to read: that ends the
        broker, and `cause_of_end` tells why.
        """
        topics = self.services.topics
        not_open = NotOpen(is_unknown=lambda entry: not topics.knows(entry.topic_id, entry.partition))
        await lead.end_earlier(log.partitions.keys())
        await log.restore(*([] if lead.several is None else [lead.several.begun]))
        if lead.several is None:
            await log.replay(not_open)
        else:
            await log.replay(attrs.evolve(not_open, is_lost=lead.several.is_lost), lead.several.is_deleted)
        local = local_log(lead, disk)
        other = await check_other_logs(log, self.settings.durability, lead.replay_earlier, local, not_open)
        for journal in (log.journal, other):
            if journal is not None and journal.has_lost_entries:
                await self._skip_lost(lead, log, journal)

    async def _skip_lost(self, lead: Lead, log: Log, journal: Journal) -> None:
        """Move partitions past the offsets that missing files of the write-ahead log may have held.

        The bucket is told, too, as `metadata.db` may be lost next.
        """
        await self.services.topics.set_lost_offsets(log.skip_lost())
        with trio.move_on_after(CLOSE_SECONDS):
            try:
                await lead.write_last_checkpoint()
            except StoreError as exc:
                logger.warning("no checkpoint in the bucket tells yet which offsets were lost: %s", exc)
        await journal.settle_loss()

    async def _decide(self, lead: Lead, log: Log) -> None:
        """Tell all later brokers what this one has found. From then on any of it may be served.

        One that has claimed meanwhile may have found something else, and need not have seen this.
        """
        with startup_errors():
            if lead.several is not None:
                await lead.several.decide(list(log.partitions.values()))
            await log.manifest_checkpointer.decide()
            await lead.check.confirm()

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
        has_flushed = not self.services.log.tail_bytes()
        with trio.move_on_after(CLOSE_SECONDS):
            try:
                if lead.several is not None:
                    await lead.several.leaving.tell_stopped(has_flushed=has_flushed)
                elif has_flushed or self.settings.durability is not Durability.WAL:
                    await lead.release(self.settings.namespace)
            except (StoreError, KafkaError) as exc:
                logger.warning("other brokers could not be told of the shutdown: %s", exc)

    # ---- the nurseries, outermost first -----------------------------------------------------------------------

    async def _run_leading(
        self,
        lead: Lead,
        disk: Disk,
        advertised: Mapping[str, Endpoint | None],
        task_status: trio.TaskStatus[Broker],
    ) -> None:
        async with trio.open_nursery() as leading:
            leading.start_soon(lead.views.reach.run)
            await leading.start(lead.run)
            if lead.several is not None and self.settings.durability is not Durability.WAL:
                leading.start_soon(lead.several.store_loss.run)
            services = self.services = await build_services(
                self.settings, lead, disk, advertised=advertised, token_keys=self._token_keys, metrics=self.metrics
            )
            log = services.log
            configured = services.broker_configs, services.client_quotas, services.group_configs
            for registry in (services.topics, *configured, services.scram_users, services.acls, services.producer_ids):
                leading.start_soon(registry.run)
            leading.start_soon(self._token_keys.run)
            opened = await self._restore(lead, log, disk)
            await self._run_storage(lead, log, opened, task_status)
            await self._last_checkpoints(lead, log)
            await self._leave(lead)
            leading.cancel_scope.cancel()

    async def _run_storage(
        self, lead: Lead, log: Log, opened: Sequence[Topic], task_status: trio.TaskStatus[Broker]
    ) -> None:
        services = self.services
        async with trio.open_nursery() as storage:
            for task in log.journal.tasks:
                await storage.start(task)
            await storage.start(partial(services.groups.run, serving=self._serving))
            await storage.start(services.transactions.run)
            storage.start_soon(expire_producers, log)
            storage.start_soon(log.deleter.run)
            storage.start_soon(log.manifest_checkpointer.run)
            storage.start_soon(open_retention(services).run)
            storage.start_soon(log.merger.run, list(log.partitions.values()))
            storage.start_soon(log.compactor.run, lambda: list(log.partitions.values()))
            storage.start_soon(open_orphan_collector(services, lead).run)
            topic_deleter = open_topic_deleter(services)
            storage.start_soon(topic_deleter.run)
            leading = open_leading(services, lead)

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

            listener = TopicListener(on_created=open_topic, on_changed=open_topic, on_deleted=delete_topic)
            services.topics.follow(listener, since=opened)  # others may have changed them meanwhile
            await self._run_flusher(lead, log, leading, task_status)
            storage.cancel_scope.cancel()

    async def _abort_hanging(self, lead: Lead, log: Log) -> None:
        await self.services.leadership.wait_loaded()
        search = open_hanging_search(self.services, lead)
        if search is None:
            await self.services.transactions.abort_hanging(list(log.partitions.values()))
        else:  # what is unknown here may be known to another coordinator
            await search.run()

    async def _run_flusher(
        self, lead: Lead, log: Log, leading: Leading | None, task_status: trio.TaskStatus[Broker]
    ) -> None:
        async with trio.open_nursery() as flusher:
            await flusher.start(log.flusher.run)
            if log.spiller is not None:
                flusher.start_soon(log.spiller.run)
            flusher.start_soon(log.reader.run)
            await flusher.start(self.services.leadership.run)
            if leading is not None:
                await flusher.start(leading.run)
            if self.services.following is not None:
                await flusher.start(self.services.following.run)
            flusher.start_soon(self._abort_hanging, lead, log)
            await self._wait_loaded()
            if lead.several is not None:
                flusher.start_soon(lead.several.balance.meter.run)
                lead.several.controller.serving.set()
                room = lead.several.disk_room(lambda: log.journal.lacks_room, lambda: lead.check.led_at)
                flusher.start_soon(room.run)
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
        broker_configs = self.services.broker_configs
        broker_configs.follow(lambda: acceptor.use_limits(broker_configs.settings.limits))
        async with trio.open_nursery() as connections:
            self.connections = connections
            async with trio.open_nursery() as acceptors:
                acceptors.start_soon(acceptor.accept, self.listeners, connections)
                acceptors.start_soon(acceptor.dispatcher.load_all)
                self._not_ready = None
                self._serving.set()
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
