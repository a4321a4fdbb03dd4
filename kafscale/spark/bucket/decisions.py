"""What the broker that leads has taken for a part of the log, where objects of several brokers contradict one another.

A start writes a checkpoint of the manifests before it serves anything. What it found is the log from then on, also
where an earlier broker sends something afterwards whose epoch is later than that of what was found, and this broker has
written nothing itself (`kafscale.formats.resolution`). So the checkpoint is asked for where objects contradict one
another, which is after a take-over from a broker that went on for a while, and only there: it is large.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import attrs

from kafscale.errors import AccessDenied, DamagedObject, NotFound
from kafscale.formats.manifest import PartitionId
from kafscale.formats.manifest_checkpoint import ManifestCheckpoint, decode_manifests
from kafscale.formats.resolution import NOTHING_DECIDED, Decided
from kafscale.spark.bucket.bucket import Bucket
from kafscale.store.paths import NumberedKey, SegmentKey, parse_numbered_key, system_prefix

LISTINGS_MAX_COUNT = 3  # of a bucket whose broker deletes checkpoints while they are read

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class DecisionReader:
    """Reads the newest checkpoint of the manifests when it is asked to, and keeps it until there is a newer one."""

    bucket: Bucket
    namespace: str
    _key: NumberedKey | None = attrs.field(default=None, init=False)
    _checkpoint: ManifestCheckpoint = attrs.field(factory=dict, init=False)

    def look(self) -> None:
        """Take what there is now: a listing request, and a GET of a new checkpoint.

        One that may not be read, or is damaged, is not there, with a warning. Raises StoreError.
        """
        prefix = system_prefix("manifests", namespace=self.namespace)
        try:
            self._read_newest(prefix)
        except (AccessDenied, DamagedObject) as exc:
            logger.warning("%s can't be read, so what a broker sent too late may be read for its log: %s", prefix, exc)

    def decided(self, partition: PartitionId, keys: Iterable[SegmentKey]) -> Decided:
        """Return which of these segments the broker that leads took for parts of the log, as of the last look."""
        known = self._checkpoint.get(partition)
        return NOTHING_DECIDED if known is None else known.decided(keys)

    def _read_newest(self, prefix: str) -> None:
        for _ in range(LISTINGS_MAX_COUNT):
            newest = max(
                filter(None, (parse_numbered_key(info.key) for info in self.bucket.list(prefix))),
                key=lambda key: (key.epoch, key.number),
                default=None,
            )
            if newest is None or newest == self._key:
                return
            try:
                self._checkpoint = decode_manifests(newest.key, self.bucket.get(newest.key).data)
            except NotFound as exc:
                logger.info("a checkpoint of the manifests has been replaced while it was read: %s", exc)
            else:
                self._key = newest
                return
