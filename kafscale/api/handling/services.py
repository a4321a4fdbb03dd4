"""The components that handlers work with; built by `kafscale.api.build`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import attrs
import trio

from kafscale.api.handling.access import Access
from kafscale.api.handling.authentication import Authenticator
from kafscale.api.handling.fetch_sessions import FetchSessions, Referrals
from kafscale.api.handling.gate import Gate
from kafscale.api.handling.quotas import Quotas
from kafscale.api.handling.record_checks import RecordChecks
from kafscale.cluster.coordinator.entries import InternalLog
from kafscale.cluster.coordinator.loading import Leadership
from kafscale.cluster.groups.configs import GroupConfigs
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.membership.assignment import Assignment
from kafscale.cluster.membership.leading.following import Following
from kafscale.cluster.membership.node import Node
from kafscale.cluster.membership.placement.administration import BrokerAdministration, Mover
from kafscale.cluster.membership.placement.choice import BalancePlan
from kafscale.cluster.registries.acls import AclRegistry
from kafscale.cluster.registries.client_quotas import ClientQuotas
from kafscale.cluster.registries.dynamic_configs import BrokerConfigs
from kafscale.cluster.registries.producer_ids import ProducerIds
from kafscale.cluster.registries.scram_users import ScramUsers
from kafscale.cluster.registries.topics import Topic, TopicRegistry
from kafscale.cluster.transactions.offset_commits import TransactionalOffsets
from kafscale.cluster.transactions.service import TransactionService
from kafscale.config import Settings
from kafscale.log.log import Log, TopicSpec
from kafscale.log.partition.partition import FetchWaiter
from kafscale.metrics import Metrics
from kafscale.wire.messages.brokers import OwnHeartbeatRequest, OwnHeartbeatResponse
from kafscale.wire.messages.cluster import ApiVersion


@attrs.define(eq=False, kw_only=True, repr=False)
class Services:
    """The components of one broker.

    `draining` is set when the broker begins to stop: waiting requests are answered at once. `check_lead` raises Fenced
    if another broker has taken over. `catch_up`, `mover`, `heard_of`, `plan_balance`, `wait_awake` and `has_led_lately`
    are those of `ClusterMember`. `following` reads partitions of other leaders from the bucket; `referrals` remembers
    the consumers sent there. Connections take turns in `pattern_thread` to match clients' regular expressions.
    """

    metrics: Metrics
    draining: trio.Event
    settings: Settings
    api_versions: list[ApiVersion]
    node: Node
    assignment: Assignment
    topics: TopicRegistry
    producer_ids: ProducerIds
    groups: GroupCoordinator
    log: Log
    internal: InternalLog
    leadership: Leadership
    transactions: TransactionService
    transactional_offsets: TransactionalOffsets
    fetch_sessions: FetchSessions
    client_quotas: ClientQuotas
    broker_configs: BrokerConfigs
    group_configs: GroupConfigs
    scram_users: ScramUsers
    authenticator: Authenticator
    acls: AclRegistry
    access: Access
    quotas: Quotas
    gate: Gate
    record_checks: RecordChecks
    check_lead: Callable[[], Awaitable[None]]
    catch_up: Callable[[], Awaitable[None]]
    mover: Mover
    membership: BrokerAdministration
    following: Following = attrs.field(init=False)
    heard_of: Callable[[OwnHeartbeatRequest], Awaitable[OwnHeartbeatResponse]]
    plan_balance: Callable[[Collection[bytes] | None], BalancePlan | None]
    wait_awake: Callable[[], Awaitable[None]]
    has_led_lately: Callable[[], bool]
    referrals: Referrals = attrs.field(factory=Referrals, init=False)
    pattern_thread: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    waiting_fetches: set[FetchWaiter] = attrs.field(factory=set, init=False)

    def topic_spec(self, topic: Topic) -> TopicSpec:
        return TopicSpec(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_count=topic.partition_count,
            config=topic.config,
            log_start_offsets=self.topics.log_start_offsets(topic.topic_id),
            lost_offsets=self.topics.lost_offsets(topic.topic_id),
            leader_epochs=self.assignment.led_here(topic),
        )

    def drain(self) -> None:
        """Begin to stop: answer all waiting requests."""
        self.draining.set()
        for waiter in self.waiting_fetches:
            waiter.event.set()
