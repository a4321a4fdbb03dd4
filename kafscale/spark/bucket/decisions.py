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

from kafscale.errors import AccessDenied
from kafscale.formats.manifest import PartitionId
from kafscale.formats.manifest_checkpoint import ManifestCheckpoint, decode_manifests
from kafscale.formats.resolution import NOTHING_DECIDED, Decided
from kafscale.spark.bucket.blocking import BlockingStore, run
from kafscale.spark.bucket.bucket import Bucket
from kafscale.store.paths import NumberedKey, SegmentKey, system_prefix
from kafscale.store.versions import find_versions, list_versions

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class DecisionReader:
    """Reads the newest checkpoint of the manifests when it is asked to, and keeps it until there is a newer one."""

    bucket: Bucket
    namespace: str
    _key: NumberedKey | None = attrs.field(default=None, init=False)
    _checkpoint: ManifestCheckpoint = attrs.field(factory=dict, init=False)

    def look(self) -> None:
        """Take what there is now: a listing request, and where there is a new one, another and a GET.

        One that may not be read, or is damaged, is not there, with a warning. Raises StoreError.
        """
        store = BlockingStore(self.bucket)
        try:
            keys = run(list_versions(store, self.namespace, "manifests"))
            if not keys or keys[-1] == self._key:
                return
            found = run(find_versions(store, self.namespace, "manifests", decode_manifests))
        except AccessDenied as exc:
            self._warn(exc)
            return
        for damage in found.damage:
            self._warn(damage)
        self._checkpoint = {} if found.newest is None else found.newest
        self._key = found.keys[-1]

    def decided(self, partition: PartitionId, keys: Iterable[SegmentKey]) -> Decided:
        """Return which of these segments the broker that leads took for parts of the log, as of the last look."""
        known = self._checkpoint.get(partition)
        return NOTHING_DECIDED if known is None else known.decided(keys)

    def _warn(self, why: Exception) -> None:
        prefix = system_prefix("manifests", namespace=self.namespace)
        logger.warning("%s can't be read, so what a broker sent too late may be read for its log: %s", prefix, why)
