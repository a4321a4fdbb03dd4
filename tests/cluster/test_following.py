"""A simulation of brokers whose metadata is elsewhere: they hear of changes late.

Answers to commits are lost, the store is away now and then, and each broker decides by what it has heard. Whatever
happens, nothing is decided twice, nothing goes back, and in the end all of them have what the store has.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import pytest
import trio

from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.follower import Follower
from kafscale.cluster.registries.client_quotas import PRODUCER_BYTE_RATE, ClientQuotas, QuotaChange, QuotaEntity
from kafscale.cluster.registries.topic_names import collision_key
from kafscale.cluster.registries.topics import (
    MorePartitions,
    NewConfigs,
    NewTopic,
    Topic,
    TopicListener,
    TopicRegistry,
)
from kafscale.config import Limits, Settings
from kafscale.errors import KafkaError, StorageFull, StoreUnavailable
from kafscale.testing.metadata import MemoryMetadataStore
from tests.cluster.late_metadata import LateMetadataStore

NAMES = ("a", "b", "c.d", "c_d", "e")
TOPIC_MAX_COUNT = 4
SECONDS = 120.0


@attrs.define(eq=False)
class FullDisk(MemoryMetadataStore):
    """Has room for what is essential only; an answer may get lost."""

    loses_answer: bool = True

    async def commit(self, transaction: Transaction) -> int:
        if not transaction.essential:
            raise StorageFull("no room")
        revision = await super().commit(transaction)
        if self.loses_answer:
            self.loses_answer = False
            raise StoreUnavailable("no answer")
        return revision


async def test_an_essential_commit_settles_despite_a_full_disk() -> None:
    """Seed 5011 of several brokers: the controller ended, as it could not ask what had become of a commit."""
    applied: list[str] = []
    follower = Follower(FullDisk(), ("a/",), lambda change: applied.extend(change.puts))
    await follower.load()

    async def plan(revision: int) -> Transaction:
        return Transaction(puts={f"a/{revision}": b"x"}, essential=True)

    with pytest.raises(StoreUnavailable):
        await follower.commit_planned(plan)
    await follower.commit_planned(plan)
    assert applied == ["a/0", "a/1"]


@attrs.define(eq=False, kw_only=True)
class Elsewhere(LateMetadataStore):
    """Answers to commits are lost at random, after their effect."""

    random: random.Random

    async def commit(self, transaction: Transaction) -> int:
        await trio.sleep(self.random.uniform(0, 0.05))
        revision = await super().commit(transaction)
        if self.random.random() < 0.05:
            raise StoreUnavailable("no answer")
        return revision

    async def tell_late(self) -> None:
        """Tell some of the changes now and then."""
        while True:
            await trio.sleep(self.random.uniform(0, 1))
            self.tell(self.random.randint(self.revision, self.committed_revision))

    async def be_away(self) -> None:
        """Be out of reach now and then."""
        while True:
            await trio.sleep(self.random.uniform(0, 10))
            self.failure = StoreUnavailable("away")
            await trio.sleep(self.random.uniform(0, 3))
            self.failure = None


@attrs.define(eq=False)
class Broker:
    """Its registries, and what their listener was told of topics, which must make sense."""

    topics: TopicRegistry
    quotas: ClientQuotas
    open: dict[bytes, Topic] = attrs.field(factory=dict, init=False)
    ever: set[bytes] = attrs.field(factory=set, init=False)

    @classmethod
    def on(cls, store: LateMetadataStore) -> Broker:
        settings = Settings(limits=Limits(max_topics_count=TOPIC_MAX_COUNT))
        broker = cls(TopicRegistry(store=store, settings=settings), ClientQuotas(store))
        broker.topics.follow(
            TopicListener(on_created=broker.on_created, on_changed=broker.on_changed, on_deleted=broker.on_deleted)
        )
        return broker

    def on_created(self, topic: Topic) -> None:
        assert topic.topic_id not in self.ever, "a topic came back"
        self.ever.add(topic.topic_id)
        self.open[topic.topic_id] = topic

    def on_changed(self, topic: Topic) -> None:
        before = self.open[topic.topic_id]
        assert topic != before, "nothing has changed"
        assert topic.partition_count >= before.partition_count, "a topic has lost partitions"
        self.open[topic.topic_id] = topic

    def on_deleted(self, topic: Topic) -> None:
        del self.open[topic.topic_id]

    async def work(self, chance: random.Random) -> None:
        while True:
            await trio.sleep(chance.uniform(0, 2))
            try:
                await self.do_something(chance)
            except (StoreUnavailable, KafkaError):
                continue

    async def do_something(self, chance: random.Random) -> None:
        name = chance.choice(NAMES)
        topic = self.topics.get(name)
        match chance.randrange(6):
            case 0 | 1:
                await self.topics.create([NewTopic(name=each, partition_count=1) for each in (name, *NAMES[:2])])
            case 2:
                await self.topics.delete([name])
            case 3:
                count = 2 if topic is None else topic.partition_count + 1
                await self.topics.create_partitions([MorePartitions(name=name, partition_count=count)])
            case 4:
                await self.topics.alter([NewConfigs(name=name, overrides=partial(with_one_more, chance))])
                entity = QuotaEntity(user=chance.choice([None, "alice"]), client_id=name)
                change = QuotaChange(entity=entity, values={PRODUCER_BYTE_RATE: chance.choice([None, 1.0, 2.0])})
                await self.quotas.alter([change])
            case 5 if topic is not None:
                await self.topics.set_log_start_offset(topic.topic_id, 0, chance.randrange(1000))


def with_one_more(chance: random.Random, old: Mapping[str, str]) -> Mapping[str, str]:
    return {**old, "retention.ms": str(chance.randrange(1000))}


def check(store: LateMetadataStore, log_starts: dict[str, int]) -> None:
    """Look at what the store has, whoever has heard of it."""
    keys = [key.removeprefix("topics/") for key in store._entries if key.startswith("topics/")]
    assert len(keys) <= TOPIC_MAX_COUNT
    assert len({collision_key(name) for name in keys}) == len(keys), "names collide"
    for key, entry in store._entries.items():
        if key.startswith("log-start-offsets/"):
            assert int(entry.value) >= log_starts.get(key, 0), "a log start went back"
            log_starts[key] = int(entry.value)


async def check_all_the_time(store: LateMetadataStore) -> None:
    log_starts: dict[str, int] = {}
    while True:
        check(store, log_starts)
        await trio.sleep(0.01)


def has(broker: Broker) -> Sequence[object]:
    topics = broker.topics
    starts = [topics.log_start_offsets(topic.topic_id) for topic in topics.all()]
    return topics.all(), topics.deleted, starts, broker.quotas.all()


@pytest.mark.parametrize("seed", range(6))
async def test_brokers_that_receive_changes_late_converge_with_the_store(autojump_clock, seed: int) -> None:
    chance = random.Random(seed)
    store = Elsewhere(random=chance)
    brokers = [Broker.on(store) for _ in range(3)]
    async with trio.open_nursery() as following:
        for broker in brokers:
            await broker.topics.load()
            await broker.quotas.load()
        following.start_soon(store.tell_late)
        following.start_soon(check_all_the_time, store)
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as busy:
                busy.start_soon(store.be_away)
                for broker in brokers:
                    busy.start_soon(broker.work, chance)
        store.failure = None
        store.tell()
        following.cancel_scope.cancel()
    loaded = Broker.on(store)
    await loaded.topics.load()
    await loaded.quotas.load()
    for broker in brokers:
        assert has(broker) == has(loaded)
        assert broker.open == {topic.topic_id: topic for topic in broker.topics.all()}
    assert loaded.topics.deleted, "topics were created and deleted"
