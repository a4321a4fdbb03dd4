"""Deletes records by age and size, the objects of deleted topics, and objects that nothing names."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs

from kafscale.cluster.membership.start.member import ClusterMember
from kafscale.cluster.registries.topics import Topic, TopicRegistry
from kafscale.config import Settings
from kafscale.log.bucket.deletion import BuriedTopic, OrphanCollector, TopicDeleter
from kafscale.log.log import Log, expire_producers
from kafscale.log.rewrite.retention import Retention
from kafscale.metrics import Metrics
from kafscale.store.guarded import guarded


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
