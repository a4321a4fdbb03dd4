from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafscale.api.cluster.describe_log_dirs import API
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.messages.replicas import DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResponse
from tests.api.handlers import ask, some_services


class SizedLog:
    """Partitions 0 and 1 of every topic are open; partition n has 100 + n bytes."""

    def partition(self, topic_id: bytes, index: int) -> SimpleNamespace | None:
        return SimpleNamespace(size_bytes=100 + index) if index < 2 else None


@pytest.fixture
async def services(tmp_path: Path) -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.create([NewTopic(name="a", partition_count=3), NewTopic(name="b")])
    return some_services(topics=topics, settings=Settings(data_dir=tmp_path), log=SizedLog())


def sizes(response: DescribeLogDirsResponse) -> dict[str, list[tuple[int, int]]]:
    (result,) = response.results
    assert (response.error_code, result.error_code) == (0, 0)
    return {topic.name: [(p.partition_index, p.partition_size) for p in topic.partitions] for topic in result.topics}


@pytest.mark.parametrize("version", range(1, 5))
async def test_all_partitions_in_every_version(services: Any, tmp_path: Path, version: int) -> None:
    response = await ask(API, services, DescribeLogDirsRequest(topics=None), version=version)
    assert sizes(response) == {"a": [(0, 100), (1, 101)], "b": [(0, 100)]}
    (result,) = response.results
    assert result.log_dir == f"file:{tmp_path}/bucket"
    if version >= 4:
        assert 0 < result.usable_bytes < result.total_bytes
    else:
        assert (result.usable_bytes, result.total_bytes) == (-1, -1)


async def test_only_requested_partitions_that_exist_are_described(services: Any) -> None:
    asked = [("a", [1, 7]), ("a", [0]), ("nope", [0]), ("b", [3])]
    topics = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in asked]
    response = await ask(API, services, DescribeLogDirsRequest(topics=topics))
    assert sizes(response)["a"] == [(0, 100), (1, 101)]
    assert "nope" not in sizes(response)


async def test_an_empty_list_asks_for_none(services: Any) -> None:
    assert sizes(await ask(API, services, DescribeLogDirsRequest(topics=[]))) == {}


async def test_an_unreadable_volume_has_unknown_size(services: Any, tmp_path: Path) -> None:
    services.settings = Settings(data_dir=tmp_path / "missing")
    (result,) = (await ask(API, services, DescribeLogDirsRequest(topics=None))).results
    assert (result.total_bytes, result.usable_bytes) == (-1, -1)
