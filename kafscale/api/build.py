"""Builds the services of a broker: its log, registries, coordinators and the parts that only handlers need."""

from __future__ import annotations

from functools import partial

import trio

from kafscale.api.handling.access import Access
from kafscale.api.handling.authentication import Authenticator, TokenKeys
from kafscale.api.handling.fetch_sessions import FetchSessions
from kafscale.api.handling.gate import Gate
from kafscale.api.handling.quotas import Quotas
from kafscale.api.handling.record_checks import RecordChecks
from kafscale.api.handling.services import Services
from kafscale.api.table import APIS
from kafscale.cluster.assembly import Registries, build_coordinators
from kafscale.cluster.coordinator.entries import InternalLog
from kafscale.cluster.membership.leading.following import Following
from kafscale.cluster.membership.node import Node, register_node
from kafscale.cluster.membership.placement.administration import BrokerAdministration
from kafscale.cluster.membership.start.member import ClusterMember
from kafscale.cluster.registries.topic_configs import BrokerDefaults
from kafscale.config import Settings
from kafscale.log.log import Log
from kafscale.log.opening import open_journal, open_log
from kafscale.log.wal.local_wal import LocalLog
from kafscale.metrics import Metrics
from kafscale.wire.messages.cluster import ApiVersion


async def build_services(
    settings: Settings, member: ClusterMember, local: LocalLog, *, token_keys: TokenKeys, metrics: Metrics
) -> Services:
    """Make all components except those of the network. Registers this broker, and reads and writes nothing else."""
    registries = Registries.of(settings, member)
    log = _open_log(settings, member, local, registries, metrics)
    registries.producer_ids.remembered = log.producer_ids
    access, draining = Access.of(settings, registries.acls), trio.Event()
    assignment = member.assign(await _register(settings, member), registries.topics)
    coordinators = build_coordinators(
        settings,
        member,
        registries,
        internal=InternalLog(log),
        assignment=assignment,
        draining=draining,
        rights=access.authorizer,
    )
    coordinators.register(metrics)
    quotas = Quotas(settings=settings, client_quotas=registries.client_quotas, metrics=metrics)
    services = Services(
        settings=settings,
        metrics=metrics,
        draining=draining,
        api_versions=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in APIS
        ],
        node=assignment.node,
        assignment=assignment,
        topics=registries.topics,
        producer_ids=registries.producer_ids,
        log=log,
        internal=coordinators.internal,
        leadership=coordinators.leadership,
        groups=coordinators.groups,
        transactions=coordinators.transactions,
        transactional_offsets=coordinators.transactional_offsets,
        fetch_sessions=FetchSessions(settings.limits.max_fetch_sessions_count),
        client_quotas=registries.client_quotas,
        broker_configs=registries.broker_configs,
        group_configs=registries.group_configs,
        scram_users=registries.scram_users,
        authenticator=Authenticator(
            settings=settings.sasl, users=registries.scram_users, metrics=metrics, token_keys=token_keys
        ),
        acls=registries.acls,
        access=access,
        quotas=quotas,
        gate=Gate(quotas=quotas, access=access),
        record_checks=RecordChecks(log.reader.unpacking),
        check_lead=member.check.confirm,
        catch_up=member.catch_up,
        mover=member.mover,
        membership=BrokerAdministration(member.state, member.catch_up),
        wait_awake=member.wait_awake,
        has_led_lately=member.has_led_lately,
        heard_of=member.heard,
        plan_balance=member.plan_balance,
    )
    services.following = Following(
        state=member.state,
        log=log,
        spec=services.topic_spec,
        log_start_offsets=services.topics.log_start_offsets,
        refresh=member.check.confirm,
    )
    services.broker_configs.follow(partial(_use_broker_configs, services))
    return services


async def _register(settings: Settings, member: ClusterMember) -> Node:
    return await register_node(
        member.metadata,
        node_id=settings.broker_id,
        broker_epoch=member.epoch,
        cluster_id=settings.cluster_id,
        advertised=member.endpoints,
        rack=settings.rack,
    )


def _open_log(
    settings: Settings, member: ClusterMember, local: LocalLog, registries: Registries, metrics: Metrics
) -> Log:
    return open_log(
        settings,
        member.views,
        open_journal(settings, local, member.journal, metrics),
        broker_epoch=member.epoch,
        metrics=metrics,
        check_lead=member.check.confirm,
        check_lead_lately=member.check.confirm_lately,
        is_withheld=registries.producer_ids.is_withheld,
        leads_all=member.leads_all,
    )


def _use_broker_configs(services: Services) -> None:
    """Apply the broker configs set at run time. The acceptor applies limits of connections itself."""
    settings, compactor = services.broker_configs.settings, services.log.compactor
    services.topics.use_defaults(BrokerDefaults.of(settings, services.broker_configs.dynamic))
    compactor.interval_seconds = settings.compaction_check_interval_seconds
    compactor.map_bytes = settings.log_cleaner_dedupe_buffer_bytes
