"""Restores a broker's state at its start: registries from the metadata, partitions from the bucket and the log.

`put_away` leaves checkpoints for the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import attrs
import trio

from kafscale.api.handling.services import Services
from kafscale.cluster.membership.start.member import ClusterMember
from kafscale.cluster.registries.topics import Topic
from kafscale.errors import KafkaError, StoreError
from kafscale.log.log import Log
from kafscale.log.opening import check_other_logs
from kafscale.log.replaying import NotOpen
from kafscale.log.wal.journal import Journal
from kafscale.log.wal.local_wal import LocalLog
from kafscale.store.opening.probe import startup_errors

BUCKET_SECONDS = 2.0  # the bound on each of the last writes to the bucket, and on noting which offsets were lost

logger = logging.getLogger(__name__)


async def recover(services: Services, member: ClusterMember, local: LocalLog) -> Sequence[Topic]:
    """Load the registries, then restore and replay the partitions; return the open topics."""
    await _load_registries(services)
    opened = services.topics.all()
    for topic in opened:
        services.log.open_topic(services.topic_spec(topic))
    await _recover_partitions(services, member, local)
    await _decide(member, services.log)
    await services.producer_ids.begin()
    return opened


async def _load_registries(services: Services) -> None:
    await services.broker_configs.load()  # before topics, whose defaults are in it
    await services.topics.load()
    services.groups.follow_topics(services.topics)
    await services.client_quotas.load()
    await services.group_configs.load()
    await services.scram_users.load()
    if any(services.settings.protocol_of(listener).uses_sasl for listener in services.settings.listeners):
        services.scram_users.check_readable()
        services.authenticator.prepare()
    await services.acls.load()


async def _recover_partitions(services: Services, member: ClusterMember, local: LocalLog) -> None:
    """Restore partitions and replay the log. Another leader's deletions may end this broker: see `cause_of_end`."""
    log, topics = services.log, services.topics
    not_open = NotOpen(is_unknown=lambda entry: not topics.knows(entry.topic_id, entry.partition))
    await member.end_earlier(log.partitions.keys())
    await log.restore(member.begun)
    await log.replay(attrs.evolve(not_open, is_lost=member.is_lost), member.is_deleted)
    other = await check_other_logs(log, services.settings.durability, member.replay_earlier, local, not_open)
    for journal in (log.journal, other):
        if journal is not None and journal.has_lost_entries:
            await _skip_lost(services, member, journal)


async def _skip_lost(services: Services, member: ClusterMember, journal: Journal) -> None:
    """Move partitions past offsets of missing files, also in the bucket: `metadata.db` may be lost next."""
    await services.topics.set_lost_offsets(services.log.skip_lost())
    with trio.move_on_after(BUCKET_SECONDS):
        try:
            await member.write_last_checkpoint()
        except StoreError as exc:
            logger.warning("no checkpoint in the bucket tells yet which offsets were lost: %s", exc)
    await journal.settle_loss()


async def _decide(member: ClusterMember, log: Log) -> None:
    """Commit the results of this start, for all later brokers; from then on it may serve.

    A broker that has claimed meanwhile need not have seen this: the last check ends this one then.
    """
    with startup_errors():
        await member.decide(list(log.partitions.values()))
        await log.manifest_checkpointer.decide()
        await member.check.confirm()


async def put_away(services: Services, member: ClusterMember) -> None:
    """Write the last checkpoints, and record that this broker has stopped, if the bucket can be reached."""
    with trio.move_on_after(BUCKET_SECONDS):
        try:
            await member.write_last_checkpoint()
            await services.log.manifest_checkpointer.write_if_changed()
        except StoreError as exc:
            logger.warning("not everything has a checkpoint of the shutdown: %s", exc)
    has_flushed = not services.log.tail_bytes()
    with trio.move_on_after(BUCKET_SECONDS):
        try:
            await member.tell_stopped(has_flushed=has_flushed)
        except (StoreError, KafkaError) as exc:
            logger.warning("other brokers could not be told of the shutdown: %s", exc)
