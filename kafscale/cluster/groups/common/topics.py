"""Topics as consumer groups need them: ids, numbers of partitions, and a hash of each.

One `KnownTopics` serves all groups. A group sees by `version` that topics have changed, and by the hash of its own
topics whether that concerns it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import attrs

HASH_BYTES = 8  # the record's field is an int64


@attrs.frozen(kw_only=True)
class KnownTopic:
    topic_id: bytes
    name: str
    partition_count: int


@attrs.define(eq=False, repr=False)
class KnownTopics:
    """All topics by name and by id.

    `version` rises with every change, `created_version` is that of the last new topic: both are revisions of the
    metadata, so they can be compared with a record's after a restart.
    """

    version: int = 0
    created_version: int = 0
    by_name: dict[str, KnownTopic] = attrs.field(factory=dict, init=False)
    by_id: dict[bytes, KnownTopic] = attrs.field(factory=dict, init=False)
    _hashes: dict[str, bytes] = attrs.field(factory=dict, init=False)  # of topics that some group asked for

    def change(self, *, version: int, put: Iterable[KnownTopic] = (), removed: Iterable[str] = ()) -> None:
        """Apply changes of the metadata at this revision; a topic of the same name is replaced."""
        assert version >= self.version
        self.version = version
        for name in removed:
            self._remove(name)
        for topic in put:
            known = self.by_name.get(topic.name)
            if known is None or known.topic_id != topic.topic_id:
                self.created_version = version
            self._remove(topic.name)
            self.by_name[topic.name] = self.by_id[topic.topic_id] = topic

    def _remove(self, name: str) -> None:
        topic = self.by_name.pop(name, None)
        if topic is not None:
            del self.by_id[topic.topic_id]
        self._hashes.pop(name, None)

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a hash, as an int64, over those of these topics that exist; 0 if none does.

        It must stay the same over restarts. Kafka has another hash in the same field.
        """
        known = sorted(name for name in names if name in self.by_name)
        if not known:
            return 0
        whole = blake2b(digest_size=HASH_BYTES)
        for name in known:
            whole.update(self._hash(name))
        return int.from_bytes(whole.digest(), "big", signed=True)

    def _hash(self, name: str) -> bytes:
        cached = self._hashes.get(name)
        if cached is None:
            topic = self.by_name[name]
            no_racks: list[str] = []  # of replicas: a topic's hash must stay as records have it
            told = repr((topic.topic_id, topic.name, topic.partition_count, no_racks)).encode()
            cached = self._hashes[name] = blake2b(told, digest_size=HASH_BYTES).digest()
        return cached
