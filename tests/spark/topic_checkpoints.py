"""Checkpoints of the metadata as objects of a bucket, with topics as a test wants them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from kafscale.cluster.metadata.converter import encode
from kafscale.formats.metadata_changes import Transaction
from kafscale.formats.wal_objects import WalPosition
from kafscale.store.paths import NumberedKey
from tests.formats.metadata_checkpoints import encode_checkpoint


@attrs.define(kw_only=True, eq=False)
class TopicCheckpoints:
    """The metadata of a bucket that is a directory; each `write` makes a checkpoint of it as it is then."""

    directory: Path
    _puts: dict[str, bytes] = attrs.field(factory=dict, init=False)
    _count: int = attrs.field(default=0, init=False)

    def create(self, name: str, topic_id: bytes, partition_count: int = 1) -> None:
        """A topic, or one with more partitions."""
        self._puts[f"topics/{name}"] = encode({"topic_id": topic_id, "partition_count": partition_count})

    def delete(self, name: str, topic_id: bytes, *, deleted_ms: int = 1_700_000_000_000) -> None:
        """Delete a topic, and forget where its partitions began."""
        del self._puts[f"topics/{name}"]
        self._puts[f"deleted-topics/{topic_id.hex()}"] = encode({"name": name, "deleted_ms": deleted_ms})

    def set_log_start_offset(self, topic_id: bytes, partition: int, offset: int) -> None:
        """Move the log start, as DeleteRecords and retention do."""
        self._puts[f"log-start-offsets/{topic_id.hex()}/{partition}"] = encode(offset)

    def write(self, further: Mapping[str, bytes] | None = None) -> Path:
        """The file."""
        key = NumberedKey(namespace="default", kind="checkpoint", epoch=1, number=self._count)
        self._count += 1
        path = self.directory / key.key
        path.parent.mkdir(parents=True, exist_ok=True)
        puts = {**self._puts, **(further or {})}
        path.write_bytes(b"".join(encode_checkpoint(WalPosition(1, 0), [Transaction(puts=puts)])))
        return path
