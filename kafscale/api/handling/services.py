"""The components that handlers work with; built by `kafscale.broker_components`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from kafscale.api.handling.access import Access
from kafscale.api.handling.authentication import Authenticator
from kafscale.api.handling.fetch_sessions import FetchSessions, Referrals
from kafscale.api.handling.gate import Gate
from kafscale.api.handling.quotas import Quotas
from kafscale.api.handling.record_checks import RecordChecks
from kafscale.cluster.coordinator import InternalLog, Leadership
from kafscale.cluster.groups.configs import GroupConfigs
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.membership.assignment import Assignment
from kafscale.cluster.membership.leading.following import Following
from kafscale.cluster.membership.mover import Mover
from kafscale.cluster.membership.node import Node
from kafscale.cluster.membership.placement.administration import Membership
from kafscale.cluster.membership.placement.balance import Balance
from kafscale.cluster.registries.acls import AclRegistry
from kafscale.cluster.registries.client_quotas import ClientQuotas
from kafscale.cluster.registries.dynamic_configs import BrokerConfigs
from kafscale.cluster.registries.producer_ids import ProducerIds
from kafscale.cluster.registries.scram_users import ScramUsers
from kafscale.cluster.registries.topics import TopicRegistry
from kafscale.cluster.transactions.offset_commits import TransactionalOffsets
from kafscale.cluster.transactions.service import Transactions
from kafscale.config import Settings
from kafscale.errors import KafkaError
from kafscale.log.log import Log
from kafscale.log.partition.partition import FetchWaiter
from kafscale.metrics import Metrics
from kafscale.wire.error_codes import BROKER_ID_NOT_REGISTERED
from kafscale.wire.messages.brokers import OwnHeartbeatRequest, OwnHeartbeatResponse
from kafscale.wire.messages.cluster import ApiVersion
from kafscale.wire.messages.transactions import EnrolledRequest


def refuse_senders(_request: EnrolledRequest) -> None:
    """Raise KafkaError for a request that only brokers send: a broker alone knows no other."""
    raise KafkaError(BROKER_ID_NOT_REGISTERED, "this broker shares its bucket with no other")


@attrs.define(eq=False, kw_only=True, repr=False)
class Services:
    """One per broker. `draining` is set when the broker begins to stop: whoever waits for a client answers at once.

    `api_versions` is what ApiVersions advertises. `check_lead` raises Fenced if another broker has taken over.

    Of a cluster of several brokers: `catch_up` returns when what others had made known in the metadata before is known
    here, too, and may return at once if it has done so lately. `mover` moves partitions between brokers, `membership`
    tells and changes what is known of them. `heard_of` is to be told of heartbeats; it returns the answer, which tells
    whether whoever sent one may still act. `wait_awake` is to be waited for before an answer, as this process may have
    been suspended, and raises Fenced if it must not go on. `has_led_lately` tells whether it was seen in the bucket
    lately that it may. `check_sender` raises KafkaError for a request that only brokers send, if a client sends it.
    `following` reads what others lead, as far as it is in the bucket. `balance` tells what should move. `referrals`
    remembers whom this broker has sent there. In `pattern_thread` connections take turns to match
    clients' regular expressions.
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
    transactions: Transactions
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
    check_lead: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    catch_up: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    mover: Mover | None = None
    membership: Membership | None = None
    following: Following | None = None
    heard_of: Callable[[OwnHeartbeatRequest], Awaitable[OwnHeartbeatResponse]] | None = None
    check_sender: Callable[[EnrolledRequest], None] = refuse_senders
    balance: Balance | None = None
    wait_awake: Callable[[], Awaitable[None]] | None = None
    has_led_lately: Callable[[], bool] = lambda: True
    referrals: Referrals = attrs.field(factory=Referrals, init=False)
    pattern_thread: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    waiting_fetches: set[FetchWaiter] = attrs.field(factory=set, init=False)

    def drain(self) -> None:
        """The broker begins to stop: answer everybody who waits."""
        self.draining.set()
        for waiter in self.waiting_fetches:
            waiter.event.set()
