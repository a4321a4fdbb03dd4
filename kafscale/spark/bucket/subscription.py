"""Which partitions a query reads: those of topics by name or pattern that are in the bucket, or those it names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence

import attrs

from kafscale.errors import ConfigError
from kafscale.spark.bucket.catalog import Catalog, PartitionLog

TopicPartition = tuple[str, int]
Logs = Mapping[TopicPartition, PartitionLog]


@attrs.frozen(kw_only=True)
class Subscription:
    """One of the three: topics, a regular expression that matches their whole names, or partitions."""

    topics: Sequence[str] = ()
    pattern: str | None = None
    assigned: Sequence[TopicPartition] = ()

    def find(self, catalog: Catalog, *, known: Collection[TopicPartition] = (), must_exist: bool = True) -> Logs:
        """The partitions, in order; one that nothing was flushed of has an empty log.

        Not every bucket tells of partitions without a segment, so those that the query says there are (`known`) are
        believed, unless their topic was deleted. Raises ConfigError for a topic that there is not, if it `must_exist`.
        """
        catalog.look_again()
        found: dict[TopicPartition, PartitionLog] = {}
        for topic in self._topics(catalog):
            logs = catalog.partitions(topic)
            if not logs and must_exist:
                raise _no_such_topic(topic, catalog)
            found |= {(topic, index): log for index, log in logs.items()}
        names = {topic for topic, _ in found}
        for topic, index in {*self.assigned, *(each for each in known if not must_exist or each[0] in names)}:
            believed = catalog.brokers is None and catalog.metadata.deletion_of(topic) is None
            if topic in names or believed:
                found.setdefault((topic, index), PartitionLog(topic=topic, partition=index, segments=()))
        wanted = set(self.assigned) or found.keys()
        return {partition: found[partition] for partition in sorted(found) if partition in wanted}

    def _topics(self, catalog: Catalog) -> Sequence[str]:
        if self.pattern is not None:
            return [topic for topic in catalog.topics() if re.fullmatch(self.pattern, topic)]
        return sorted({*self.topics, *(topic for topic, _ in self.assigned)})


def some_of(topics: Sequence[str], *, near_to: str, label: str) -> str:
    """Name the topic that is spelled most like another name, or some, behind a label; or say that there is none."""
    near = difflib.get_close_matches(near_to, topics, n=1) or topics[:5]
    return f"{label}: {', '.join(near)}" if near else "there is no topic at all"


def _no_such_topic(topic: str, catalog: Catalog) -> ConfigError:
    deletion = catalog.metadata.deletion_of(topic)
    if deletion is not None:
        return ConfigError(f"{deletion}, and no topic of this name was created since: leave it out")
    topics = catalog.topics()
    there = some_of(topics, near_to=topic, label="there is")
    if catalog.brokers is not None:
        return ConfigError(f"no broker of kafka.bootstrap.servers has topic '{topic}' ({there}). Check its name")
    return ConfigError(
        f"the bucket has no segment of topic '{topic}' in namespace '{catalog.namespace}' ({there}). Check store, "
        "namespace and name; records that were just produced come into the bucket by `kafscale flush`"
    )
