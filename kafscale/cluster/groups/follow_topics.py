"""Consumer groups of Kafka 4's protocol get to know the topics: their ids and how many partitions they have."""

from __future__ import annotations

from kafscale.cluster.groups.common.topics import KnownTopic, KnownTopics
from kafscale.cluster.registries.topics import Topic, TopicListener, TopicRegistry


def follow_topics(topics: KnownTopics, registry: TopicRegistry) -> None:
    """Tell groups of all topics that there are, once they are loaded, and of every change from now on.

    Groups look at their topics with the next heartbeat of a member.
    """

    def put(topic: Topic) -> None:
        known = topics.by_name.get(topic.name)
        if known != (told := _metadata(topic)):  # not where it has another config only
            topics.change(version=registry.revision, put=[told])

    def remove(topic: Topic) -> None:
        topics.change(version=registry.revision, removed=[topic.name])

    topics.change(version=registry.revision, put=map(_metadata, registry.all()))
    registry.follow(TopicListener(on_created=put, on_changed=put, on_deleted=remove))


def _metadata(topic: Topic) -> KnownTopic:
    return KnownTopic(topic_id=topic.topic_id, name=topic.name, partition_count=topic.partition_count)
