"""The composition root: nests the nurseries and owns the shutdown order. Read this page first.

    Broker.run
    └─ admin HTTP                       answers /healthz and /readyz from the first moment to the last
       └─ leading nursery               metadata commits, the log in the bucket, checkpoints, other brokers
          └─ storage nursery            WAL syncer and file preparer, group timers, retention, rewriting, deletions
             └─ flusher nursery         a task per partition that is being flushed, the spiller, reads ahead
                └─ connection nursery   a reader and a writer per connection
                   └─ acceptors

Nesting is the shutdown order: what is outer stops later. On a stop the acceptors end first; connections answer what
they have read, within half of the shutdown timeout; the rest of it is for a last flush; what is not in the bucket then
stays in the write-ahead log. With several brokers, half of the timeout is for handing over to them before all that.

`broker_storage` opens what state is kept in, `broker_recovery` brings it back, `kafscale.api.build` builds what runs
here, `broker_security` opens what listeners are secured by.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from kafscale.api.build import build_services
from kafscale.api.handling.services import Services
from kafscale.broker_metrics import register_group_lag
from kafscale.broker_recovery import put_away, recover
from kafscale.broker_security import BrokerSecurity, open_security
from kafscale.broker_storage import StorageParts, open_data_directory, open_storage
from kafscale.cluster.assembly import Cleanup, end_hanging
from kafscale.cluster.membership.peers.peer_connections import Connect, peer_connector
from kafscale.cluster.membership.start.claim import cause_of_end
from kafscale.cluster.membership.start.starting import ClusterMember, start_leading
from kafscale.cluster.registries.topics import Topic, TopicListener
from kafscale.config import Settings
from kafscale.metrics import Metrics
from kafscale.metrics.process import register_process
from kafscale.server.http.admin import AdminServer
from kafscale.server.kafka.binding import BoundListener, bind, open_listeners
from kafscale.server.kafka.dispatch import Dispatcher
from kafscale.server.kafka.listener import Acceptor, MakeDispatcher, open_acceptor
from kafscale.server.token_keys import PublishedKeys

if TYPE_CHECKING:
    from kafscale.broker_traces import BrokerTraces

logger = logging.getLogger(__name__)

LOAD_SECONDS = 30.0  # that a start waits for internal partitions to be read

RunTask = Callable[..., Awaitable[None]]  # reports started by `task_status`


@attrs.define(eq=False, repr=False)
class Broker:
    """One broker. `run` it; `listeners` and `admin` have the real ports once it has reported that it is started.

    `connections` is the nursery of connections, so that an error of one ends the broker. `make_dispatcher` lets tests
    inject errors. `connect` connects a broker without listeners, as in a simulation, to others. `traces` traces it,
    with its own `make_dispatcher`.
    """

    settings: Settings
    make_dispatcher: MakeDispatcher = attrs.field(default=Dispatcher, kw_only=True)
    connect: Connect | None = attrs.field(default=None, kw_only=True)
    traces: BrokerTraces | None = attrs.field(default=None, kw_only=True)
    metrics: Metrics = attrs.field(factory=Metrics, init=False)
    listeners: Sequence[BoundListener] = attrs.field(factory=list, init=False)
    admin: BoundListener = attrs.field(init=False)
    member: ClusterMember = attrs.field(init=False)
    services: Services = attrs.field(init=False)
    acceptor: Acceptor = attrs.field(init=False)
    connections: trio.Nursery = attrs.field(init=False)
    security: BrokerSecurity | None = attrs.field(default=None, init=False)
    _serving: trio.Event = attrs.field(factory=trio.Event, init=False)
    _stopping: trio.Event = attrs.field(factory=trio.Event, init=False)
    _not_ready: str | None = attrs.field(default="starting", init=False)

    @property
    def is_ready(self) -> bool:
        """Tell whether clients are served: after the start, and before a stop."""
        return self._not_ready is None

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Begin an orderly shutdown; `run` returns when it is done."""
        self._stopping.set()

    async def reload_files(self) -> None:
        if self.security is not None:
            await self.security.watch.reload()

    async def run(self, *, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`; reports started when clients are served. Raises StartupError, StorageFailed, Fenced."""
        register_process(self.metrics)
        with open_data_directory(self.settings) as directory:
            self.security = open_security(self.settings)
            self.security.register(self.metrics)
            self.admin = await bind("ADMIN", self.settings.admin_listen, option="--admin-listen")
            async with trio.open_nursery() as nursery:
                access = self.security.access
                server = AdminServer(
                    self.metrics,
                    lambda: self._not_ready,
                    lambda: self.services.log,
                    self._settle_metadata,
                    access=access,
                )
                nursery.start_soon(server.server.accept, self.admin.sockets)
                nursery.start_soon(self.security.run)
                async with open_storage(self.settings, directory, self.metrics) as parts:
                    self.listeners = await open_listeners(self.settings)
                    await self.run_on(parts, task_status=task_status)
                nursery.cancel_scope.cancel()

    async def _settle_metadata(self) -> None:
        await self.member.settle_metadata()

    async def run_on(
        self, parts: StorageParts, *, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve on an open store, metadata and disk, as a simulation has; otherwise like `run`."""
        self._not_ready = "restoring"
        between = None if self.security is None else self.security.between
        connect = peer_connector(self.settings, between) if self.listeners else self.connect
        ports = {listener.name: listener.port for listener in self.listeners}
        views = parts.store_views() if self.traces is None else self.traces.views(parts.store_views())
        lead = self.member = await start_leading(self.settings, views, parts.metadata, ports, connect)
        lead.register(self.metrics)
        try:
            await self._run_leading(lead, parts, task_status)
        except Exception as exc:
            self._not_ready = "ended by an error"
            cause = await cause_of_end(lead.check, exc, self._stopping.is_set)
            if cause is exc:
                raise
            raise cause from exc

    async def _wait_loaded(self) -> None:
        """Wait for some time until all groups are loaded; earlier requests for them get a retriable error."""
        with trio.move_on_after(LOAD_SECONDS) as waiting:
            await self.services.leadership.wait_loaded()
        if waiting.cancelled_caught:
            logger.warning("%d internal partitions are still being read", self.services.leadership.loading_count)

    # ---- the nurseries, outermost first -----------------------------------------------------------------------

    async def _run_leading(
        self, lead: ClusterMember, parts: StorageParts, task_status: trio.TaskStatus[Broker]
    ) -> None:
        local, token_keys = lead.local_log(parts.disk), PublishedKeys.of(self.settings.sasl)
        async with trio.open_nursery() as leading:
            leading.start_soon(lead.views.reach.run)
            await leading.start(lead.run)
            services = self.services = await build_services(
                self.settings, lead, local, token_keys=token_keys, metrics=self.metrics
            )
            if self.traces is not None:
                self.traces.follow(services)
            register_group_lag(services)
            leading.start_soon(token_keys.run)
            opened = await recover(services, lead, local)
            await self._run_storage(lead, opened, task_status)
            await put_away(services, lead)
            leading.cancel_scope.cancel()

    async def _run_storage(
        self, lead: ClusterMember, opened: Sequence[Topic], task_status: trio.TaskStatus[Broker]
    ) -> None:
        services, log = self.services, self.services.log
        async with trio.open_nursery() as storage:
            for task in log.journal.tasks:
                await storage.start(task)
            await storage.start(partial(services.groups.run, serving=self._serving))
            await storage.start(services.transactions.run)
            cleanup = Cleanup.of(self.settings, log, services.topics, lead, self.metrics)
            for task in cleanup.tasks():
                storage.start_soon(task)
            leading = lead.leader_of(log, services.topics, services.topic_spec)

            def delete_topic(topic: Topic) -> None:
                log.close_topic(topic.name)
                services.groups.deletion.forget_topic(topic.name)
                cleanup.bury(topic)

            listener = TopicListener(
                on_created=leading.open_topic, on_changed=leading.open_topic, on_deleted=delete_topic
            )
            services.topics.follow(listener, since=opened)  # others may have changed them meanwhile
            await self._run_flusher(lead, leading.run, task_status)
            storage.cancel_scope.cancel()

    async def _end_hanging(self, lead: ClusterMember) -> None:
        services = self.services
        await services.leadership.wait_loaded()
        await end_hanging(
            services.transactions, lead, topics=services.topics, assignment=services.assignment, log=services.log
        )

    async def _run_flusher(
        self, lead: ClusterMember, run_leading: RunTask, task_status: trio.TaskStatus[Broker]
    ) -> None:
        log = self.services.log
        async with trio.open_nursery() as flusher:
            await flusher.start(log.flusher.run)
            if log.spiller is not None:
                flusher.start_soon(log.spiller.run)
            flusher.start_soon(log.reader.run)
            await flusher.start(self.services.leadership.run)
            await flusher.start(run_leading)
            await flusher.start(self.services.following.run)
            flusher.start_soon(self._end_hanging, lead)
            await self._wait_loaded()
            flusher.start_soon(lead.serve, log)
            stop_by = await self._run_connections(lead, task_status)
            with trio.CancelScope(deadline=stop_by) as last_flush:
                await log.journal.settle()
                await log.flusher.flush_all()
            if last_flush.cancelled_caught:
                logger.warning("shutting down with %d bytes not in the bucket yet", log.tail_bytes())
            flusher.cancel_scope.cancel()

    async def _run_connections(self, lead: ClusterMember, task_status: trio.TaskStatus[Broker]) -> float:
        """Serve until the stop. Returns the time by which everything must be over."""
        tls = None if self.security is None else self.security.tls
        acceptor = self.acceptor = open_acceptor(self.services, self.make_dispatcher, tls)
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

    async def _hand_over(self, lead: ClusterMember, until: float) -> None:
        """Move led partitions to other brokers, if there are any; clients are served meanwhile."""
        with trio.CancelScope(deadline=until) as scope:
            await lead.hand_over()
        if scope.cancelled_caught:
            logger.warning("there was no time for others to lead what this broker leads: it waits for the next start")


def _half_way(until: float) -> float:
    now = trio.current_time()
    return now + (until - now) / 2
