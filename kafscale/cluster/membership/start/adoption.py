"""Registering topics, or partitions of topics, that the bucket or the local log holds and the metadata does not know.

What is known of such a topic is what its keys and last footers say, and the entries of the local write-ahead log
(`giving_back`): name, id, number of partitions, offsets. What is not: its configs, the offsets that groups committed,
partitions that never got a record. So that nothing is deleted on a guess, an adopted topic keeps everything
(`retention.ms=-1`) unless it is told otherwise.

A topic's data stays where it is and under the id that its keys have; segments of version 1 have the id that is made of
their topic's name (`kafscale.store.paths`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.membership.node import epoch_key
from kafscale.cluster.metadata.base import MetadataStore, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.registries.producer_ids import NEXT_BLOCK_KEY
from kafscale.cluster.registries.topic_records import KEEP_EVERYTHING
from kafscale.cluster.registries.topics import MorePartitions, NewTopic, Topic, TopicRegistry
from kafscale.concurrency.nurseries import for_each
from kafscale.errors import DamagedObject, NotFound
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.manifest import ListedSegment, PartitionId
from kafscale.formats.resolution import assumed_ends
from kafscale.formats.segment import Footer
from kafscale.log.bucket.listing import list_segments
from kafscale.log.bucket.restore import FOOTER_READS_MAX_COUNT
from kafscale.store.base import ObjectStore

GiveBack = Callable[[Mapping[bytes, str]], Awaitable[None]]  # of the topics with these ids and names


async def give_nothing_back(_names: Mapping[bytes, str]) -> None:
    """Put no batches back into the log: there is no log on a disk."""
    await trio.lowlevel.checkpoint()


@attrs.frozen(kw_only=True)
class FoundPartition:
    """A partition that was found: offsets `first_offset` to `next_offset` (exclusive).

    The last `batch_count` batches of it are in the local write-ahead log only. `producer_id_end` is above every
    producer id in its last footers and in these batches, `leader_epoch` the greatest there; -1 for none.
    """

    first_offset: int
    next_offset: int
    segment_count: int = 0
    size_bytes: int = 0
    batch_count: int = 0
    producer_id_end: int = 0
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class UnknownTopic:
    """A topic that the metadata does not know, or of which it does not know these partitions.

    `name` is empty where nothing tells it. `damage` says why the topic can't be adopted, if so.
    """

    name: str
    topic_id: bytes
    versions: Sequence[int]
    partitions: Mapping[int, FoundPartition]
    damage: str | None = None

    @property
    def partition_count(self) -> int:
        """The least number of partitions. Those behind the last one with a record have left no trace."""
        return max(self.partitions, default=0) + 1

    @property
    def segment_count(self) -> int:
        """Count the segments that the bucket has of it."""
        return sum(partition.segment_count for partition in self.partitions.values())


@attrs.frozen(kw_only=True)
class Adoption:
    """Outcome of the adoption of a topic, or of a dry run: `refusal` is None if it is adopted."""

    topic: UnknownTopic
    refusal: str | None


async def find_unknown_topics(
    store: ObjectStore, namespace: str, is_known: Callable[[bytes, int], bool], on_progress: Callable[[int], None]
) -> Sequence[UnknownTopic]:
    """The topics of a namespace with partitions that are not known, in order of name.

    `is_known` tells it of the id of a topic and a partition. Writes nothing. Raises StoreError.
    """
    listed = await list_segments(store, namespace, on_progress)
    segments: dict[bytes, dict[int, Sequence[ListedSegment]]] = defaultdict(dict)
    for (topic_id, partition), found in listed.items():
        if not is_known(topic_id, partition):
            segments[topic_id][partition] = found
    partitions: dict[PartitionId, FoundPartition] = {}
    damage: dict[bytes, str] = {}

    async def look(partition_id: PartitionId) -> None:
        try:
            partitions[partition_id] = await _look_at_partition(store, listed[partition_id])
        except DamagedObject as exc:
            damage[partition_id[0]] = str(exc)
        except NotFound as exc:
            damage[partition_id[0]] = f"{exc} has gone since it was listed: a broker is deleting it"

    wanted = [(topic_id, partition) for topic_id, found in segments.items() for partition in found]
    await for_each(wanted, look, tasks_count=min(FOOTER_READS_MAX_COUNT, len(wanted)))
    topics = [
        UnknownTopic(
            name=next(iter(found.values()))[0].key.topic,
            topic_id=topic_id,
            versions=sorted({segment.key.version for listed_of in found.values() for segment in listed_of}),
            partitions={
                index: partitions[topic_id, index] for index in sorted(found) if (topic_id, index) in partitions
            },
            damage=damage.get(topic_id),
        )
        for topic_id, found in segments.items()
    ]
    return sorted(topics, key=lambda topic: (topic.name, topic.topic_id))


async def _look_at_partition(store: ObjectStore, listed: Sequence[ListedSegment]) -> FoundPartition:
    """Read the footers that tell where the partition ends: of the last segments, and of merged ones."""
    ends = assumed_ends(segment.key for segment in listed)
    footers = [
        await read_footer(store, segment.key) for segment in listed if segment.key.generation or segment.key not in ends
    ]
    return FoundPartition(
        first_offset=min(segment.key.base_offset for segment in listed),
        next_offset=1 + max(footer.last_offset for footer in footers),
        segment_count=len(listed),
        size_bytes=sum(segment.object_size_bytes for segment in listed),
        producer_id_end=1 + max(map(_last_producer_id, footers)),
        leader_epoch=max(*map(_last_leader_epoch, footers), *(segment.key.epoch for segment in listed)),
    )


def _last_producer_id(footer: Footer) -> int:
    return max((producer.producer_id for producer in footer.producers), default=-1)


def _last_leader_epoch(footer: Footer) -> int:
    return max((start.epoch for start in footer.epochs), default=footer.identity.leader_epoch)


async def adopt(
    topics: TopicRegistry,
    found: Sequence[UnknownTopic],
    overrides: Mapping[str, str],
    *,
    broker_id: int,
    give_back: GiveBack | None,
) -> Sequence[Adoption]:
    """Register topics, all in one transaction; one that can't be is left out.

    `overrides` are the configs of all of them, on top of KEEP_EVERYTHING. `give_back` is called before that with the
    names of those that can be registered; without it, this only tells what would be done. Raises StorageFailed.
    """
    refusals = _refusals(topics, found)
    await _register(topics, found, overrides, refusals, validate_only=True)
    if give_back is not None:
        wanted = [topic for topic in found if topic.topic_id not in refusals]
        await _make_room(topics.store, wanted, broker_id)
        await give_back({topic.topic_id: topic.name for topic in wanted})
        await _register(topics, found, overrides, refusals, validate_only=False)
    return [Adoption(topic=topic, refusal=refusals.get(topic.topic_id)) for topic in found]


async def _register(
    topics: TopicRegistry,
    found: Sequence[UnknownTopic],
    overrides: Mapping[str, str],
    refusals: dict[bytes, str],
    *,
    validate_only: bool,
) -> None:
    """Register the topics that are not refused; add to `refusals` why one could not be."""
    wanted = [topic for topic in found if topic.topic_id not in refusals]
    new = [topic for topic in wanted if topics.by_id(topic.topic_id) is None]
    larger = [topic for topic in wanted if topics.by_id(topic.topic_id) is not None]
    created = await topics.create([_new_topic(topic, overrides) for topic in new], validate_only=validate_only)
    grown = await topics.create_partitions(
        [MorePartitions(name=topic.name, partition_count=topic.partition_count) for topic in larger],
        validate_only=validate_only,
    )
    for topic, outcome in zip([*new, *larger], [*created, *grown], strict=True):
        if not isinstance(outcome, Topic):
            refusals[topic.topic_id] = str(outcome)


def _refusals(topics: TopicRegistry, found: Sequence[UnknownTopic]) -> dict[bytes, str]:
    refusals: dict[bytes, str] = {}
    counts = Counter(topic.name for topic in found)
    for topic in found:
        other = topics.get(topic.name)
        if not topic.name:
            refusals[topic.topic_id] = "its name is not known: choose it by its id, and give a name with --as"
        elif other is not None and other.topic_id != topic.topic_id:
            refusals[topic.topic_id] = (
                "a topic of this name exists; these are objects of one that was deleted"
                if topic.segment_count
                else "a topic of this name exists, which was created later: give another name with --as"
            )
        elif counts[topic.name] > 1:
            refusals[topic.topic_id] = "there are several topics of this name; choose one by its id"
        elif topic.damage is not None:
            refusals[topic.topic_id] = topic.damage
    return refusals


def _new_topic(topic: UnknownTopic, overrides: Mapping[str, str]) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.partition_count,
        overrides={**KEEP_EVERYTHING, **overrides},
        topic_id=topic.topic_id,
        log_start_offsets={
            index: partition.first_offset for index, partition in topic.partitions.items() if partition.first_offset
        },
    )


async def _make_room(store: MetadataStore, found: Sequence[UnknownTopic], broker_id: int) -> None:
    """Producer ids and leader epochs go on behind those that the footers have, also where the metadata was lost.

    A producer that got an id which a footer remembers would be taken for that producer.
    """
    partitions = [partition for topic in found for partition in topic.partitions.values()]
    lowest = {
        NEXT_BLOCK_KEY: max((partition.producer_id_end for partition in partitions), default=0),
        epoch_key(broker_id): max((partition.leader_epoch for partition in partitions), default=-1),
    }
    puts: dict[str, bytes] = {}
    for key, value in lowest.items():
        entry = await store.get(key)
        if value > (decode(int, entry.value) if entry else (0 if key == NEXT_BLOCK_KEY else -1)):
            puts[key] = encode(value)
    if puts:
        await store.commit(Transaction(puts=puts))
