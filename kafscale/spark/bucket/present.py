"""What the bucket tells at one moment before any segment is listed: its metadata, and the write-ahead log.

The log begins where a checkpoint of the metadata ends, and has the changes of metadata behind it. What a broker trims
is in a newer checkpoint, so one that has become too old between the two looks is read anew, and then the log. Where
several brokers share the bucket, the log is all of their streams, which have no changes of metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import attrs

from kafscale.errors import AccessDenied, DamagedObject, StoreError
from kafscale.formats.placements import Beginning
from kafscale.spark.bucket.bucket import Bucket
from kafscale.spark.bucket.log_objects import NO_LOG, LogMemory, LogMoved, LogReader, LogView
from kafscale.spark.bucket.metadata import Metadata, MetadataReader
from kafscale.store.paths import system_prefix

LOOKS_MAX_COUNT = 10  # between two of them at least one checkpoint was written
DAMAGED_LOOKS_COUNT = 3  # what seems to be damage may have been trimmed meanwhile

logger = logging.getLogger(__name__)


@attrs.frozen
class Present:
    """One moment. `damage`: why the log is not read, though there is one."""

    metadata: Metadata = attrs.field(factory=Metadata)
    log: LogView = NO_LOG
    damage: DamagedObject | None = None


@attrs.define(eq=False, repr=False)
class PresentReader:
    """Looks again and again. Without the log (`with_log`), as brokers have flushed it, and as the checkpoint tells."""

    bucket: Bucket
    namespace: str
    with_log: bool
    memory: LogMemory = attrs.field(factory=LogMemory)
    _metadata: MetadataReader = attrs.field(init=False)
    log: LogReader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._metadata = MetadataReader(self.bucket, self.namespace)
        self.log = LogReader(self.bucket, self.namespace, self.memory)

    def read(self) -> Present:
        """Return what is there now. What may not be read is not there, with a warning. Raises StoreError."""
        damaged_count = 0
        for _ in range(LOOKS_MAX_COUNT):
            metadata = self._metadata.read()
            position = self._metadata.position
            if not self.with_log or position is None:
                return Present(metadata)
            try:
                view = self.log.look(position, is_shared=self._metadata.is_shared)
            except LogMoved:
                continue
            except DamagedObject as exc:
                damaged_count += 1
                if damaged_count == DAMAGED_LOOKS_COUNT:
                    return Present(metadata, damage=exc)
                continue
            except AccessDenied as exc:
                prefix = system_prefix("wal", namespace=self.namespace)
                logger.warning("%s can't be read, so only what was flushed is: %s", prefix, exc)
                self.with_log = False
                return Present(metadata)
            return Present(self._metadata.changed_by(view.transactions), view)
        raise StoreError("the write-ahead log in the bucket is trimmed faster than it can be read: try again")

    def beginnings(self, topic_id: bytes) -> Mapping[int, Beginning]:
        """Return where epochs of a topic's partitions began, as of now; nothing where a broker has the bucket alone.

        What a listing has that was made before counts if the partition is decided. Raises DamagedObject, StoreError.
        """
        return self._metadata.read().beginnings(topic_id) if self._metadata.is_shared else {}
