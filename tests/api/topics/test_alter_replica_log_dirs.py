from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafscale.api.topics.alter_replica_log_dirs import API
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.replicas import AlterReplicaLogDir, AlterReplicaLogDirsRequest, AlterReplicaLogDirTopic
from tests.api.handlers import ask, some_services

NODE = Node(node_id=7, cluster_id="the-cluster", broker_epoch=3, advertised={})
MISSING, UNKNOWN = error_codes.LOG_DIR_NOT_FOUND, error_codes.UNKNOWN_TOPIC_OR_PARTITION


class Log:
    """Leads partition 0 of both topics."""

    def partition_named(self, name: str, index: int) -> SimpleNamespace | None:
        return SimpleNamespace() if (name, index) in (("a", 0), ("b", 0)) else None


@pytest.fixture
async def services(tmp_path: Path) -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.create([NewTopic(name="a", partition_count=2), NewTopic(name="b")])
    return some_services(node=NODE, topics=topics, settings=Settings(data_dir=tmp_path), log=Log())


async def move(services: Any, *to: tuple[str, str, list[int]], version: int = 2) -> dict[str, list[tuple[int, int]]]:
    dirs = [
        AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=indexes)])
        for path, name, indexes in to
    ]
    response = await ask(API, services, AlterReplicaLogDirsRequest(dirs=dirs), version=version)
    return {
        topic.topic_name: [(each.partition_index, each.error_code) for each in topic.partitions]
        for topic in response.results
    }


@pytest.mark.parametrize("version", [1, 2])
async def test_a_partition_is_in_the_only_directory_already(services: Any, tmp_path: Path, version: int) -> None:
    here = f"file:{tmp_path}/bucket"
    assert await move(services, (here, "a", [0, 0]), (here, "b", [0]), version=version) == {
        "a": [(0, 0)],
        "b": [(0, 0)],
    }


async def test_moving_a_replica_to_an_unknown_log_dir_is_refused(services: Any, tmp_path: Path) -> None:
    for path in ("/elsewhere", f"{tmp_path}/bucket", "relative", ""):
        assert await move(services, (path, "a", [0, 5]), (path, "nope", [0])) == {
            "a": [(0, MISSING), (5, MISSING)],
            "nope": [(0, MISSING)],
        }


async def test_partitions_that_are_not_here_can_not_be_moved(services: Any, tmp_path: Path) -> None:
    here = f"file:{tmp_path}/bucket"
    assert await move(services, (here, "a", [1, 2, -1]), (here, "nope", [0])) == {
        "a": [(1, error_codes.REPLICA_NOT_AVAILABLE), (2, UNKNOWN), (-1, UNKNOWN)],
        "nope": [(0, UNKNOWN)],
    }


async def test_the_last_of_two_entries_of_a_partition_counts(services: Any, tmp_path: Path) -> None:
    here = f"file:{tmp_path}/bucket"
    assert await move(services, (here, "a", [0]), ("/elsewhere", "a", [0])) == {"a": [(0, MISSING)]}
    assert await move(services, ("/elsewhere", "a", [0]), (here, "a", [0])) == {"a": [(0, 0)]}
