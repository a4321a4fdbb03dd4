"""The bucket that starts are measured on is one that a broker could have made."""

from __future__ import annotations

from pathlib import Path

from bench.restore import Shape, make_bucket, register_topics
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.cluster.registries.topics import TopicRegistry
from kafscale.config import Settings
from kafscale.log.log import TopicSpec
from kafscale.log.partition.log_config import LogConfig
from kafscale.store.file.store import FileStore
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import memory_log

SHAPE = Shape(topics=2, partitions=5, segments=3)


async def test_a_broker_reads_the_bucket_to_its_end(tmp_path: Path) -> None:
    make_bucket(tmp_path / "bucket", SHAPE)
    await register_topics(tmp_path / "data", SHAPE)
    async with SqliteMetadataStore.open(tmp_path / "data" / "metadata.db") as metadata:
        topics = TopicRegistry(store=metadata, settings=Settings())
        await topics.load()
        specs = [
            TopicSpec(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_count=topic.partition_count,
                config=LogConfig(),
                log_start_offsets={},
                leader_epochs=dict.fromkeys(range(topic.partition_count), 1),
            )
            for topic in topics.all()
        ]
    store = await FileStore.open(tmp_path / "bucket")
    async with memory_log(store, MemoryDisk(), topics=specs) as log:
        assert log.log.restored.listed_object_count == 30
        assert sum(len(partition.manifest.segments) for partition in log.log.partitions.values()) == 15
        assert [len(await log.records(partition)) for partition in log.log.partitions.values()] == [9] * 5
    await store.aclose()
