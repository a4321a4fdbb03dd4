from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.follower import PLAN_ATTEMPTS_MAX_COUNT
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.cluster.registries.topics import (
    MorePartitions,
    NewConfigs,
    NewTopic,
    Outcome,
    Topic,
    TopicListener,
    TopicRegistry,
)
from kafscale.config import Limits, Settings
from kafscale.errors import KafkaError, StartupError, StorageFailed
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from tests.cluster.late_metadata import LateMetadataStore, compete

DELETED = b'{"name": "gone", "deleted_ms": 1}'


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore()


@pytest.fixture
def topics(store: MemoryMetadataStore) -> TopicRegistry:
    return TopicRegistry(store=store)


def succeeded(outcomes: list[Outcome]) -> Topic:
    (topic,) = outcomes
    assert isinstance(topic, Topic), topic
    return topic


def failed(outcomes: list[Outcome]) -> KafkaError:
    (error,) = outcomes
    assert isinstance(error, KafkaError), error
    return error


async def create(topics: TopicRegistry, name: str, partition_count: int = 1, **more: object) -> Topic:
    return succeeded(await topics.create([NewTopic(name=name, partition_count=partition_count, **more)]))


def recording(topics: TopicRegistry, since: Sequence[Topic] | None = None) -> list[tuple[str, str, int]]:
    """What a listener hears from now on: what happened to which topic, and how many partitions that has."""
    heard: list[tuple[str, str, int]] = []
    topics.follow(
        TopicListener(
            on_created=lambda topic: heard.append(("created", topic.name, topic.partition_count)),
            on_changed=lambda topic: heard.append(("changed", topic.name, topic.partition_count)),
            on_deleted=lambda topic: heard.append(("deleted", topic.name, topic.partition_count)),
        ),
        since,
    )
    return heard


async def test_a_created_topic_is_found_by_name_and_by_id(topics: TopicRegistry) -> None:
    topic = await create(topics, "orders", 3, overrides={"retention.ms": "5000"})
    assert (topic.name, topic.partition_count, len(topic.topic_id)) == ("orders", 3, 16)
    assert topic.config.retention_ms == 5000
    assert topics.get("orders") is topic
    assert topics.by_id(topic.topic_id) is topic
    assert topics.all() == [topic]
    assert topics.index.partition_count == 3


async def test_topics_configs_and_log_starts_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with SqliteMetadataStore.open(path) as store:
        topics = TopicRegistry(store=store)
        kept = await create(topics, "b.1", 7, replication_factor=3, overrides={"cleanup.policy": "compact,delete"})
        await create(topics, "a", 2)
        gone = await create(topics, "gone", 2)
        await topics.create_partitions([MorePartitions(name="a", partition_count=4)])
        await topics.set_log_start_offset(kept.topic_id, 6, 1234)
        await topics.set_log_start_offset(gone.topic_id, 0, 5)
        await topics.delete(["gone"])
        before = topics.all()
    async with SqliteMetadataStore.open(path) as store:
        reloaded = TopicRegistry(store=store)
        await reloaded.load()
        assert reloaded.all() == before
        assert reloaded.get("b.1").config.compact
        assert reloaded.index.partition_count == 11
        assert reloaded.log_start_offsets(kept.topic_id) == {6: 1234}
        assert await store.list(f"log-start-offsets/{gone.topic_id.hex()}") == []


async def test_a_stored_config_that_is_not_accepted_any_more_stops_the_start(store: MemoryMetadataStore) -> None:
    """Kafka drops a config that it does not know; a forgotten retention.ms=-1 would delete the topic's data."""
    value = b'{"topic_id": "%s", "partition_count": 1, "overrides": {"retention.eons": "-1"}}' % base64.b85encode(
        bytes(16)
    )
    await store.commit(Transaction(puts={"topics/orders": value}))
    with pytest.raises(StartupError, match=r"topic orders has a config .* retention\.eons"):
        await TopicRegistry(store=store).load()


async def test_configs_stored_verbatim_by_an_earlier_version_are_read_in_canonical_form(
    store: MemoryMetadataStore, topics: TopicRegistry
) -> None:
    await topics.create([NewTopic(name="a", overrides={"retention.ms": " +7 ", "cleanup.policy": "compact, delete"})])
    (entry,) = await store.list("topics/")
    assert b'"retention.ms":"7","cleanup.policy":"compact,delete"' in entry.value
    typed = entry.value.replace(b'"7"', '"\u00a0+7 "'.encode()).replace(b"compact,delete", b"compact ,delete")
    await store.commit(Transaction(puts={"topics/a": typed}))
    again = TopicRegistry(store=store)
    await again.load()
    for each in (topics, again):
        topic = each.get("a")
        assert topic is not None
        assert topic.overrides == {"retention.ms": "7", "cleanup.policy": "compact,delete"}
        assert (topic.config.retention_ms, topic.config.cleanup_policy) == (7, ("compact", "delete"))


async def test_an_unknown_topic_config_of_a_later_version_suspends_retention(
    store: MemoryMetadataStore, topics: TopicRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers are upgraded one by one. What they can't read may keep records, so they delete none meanwhile."""
    await topics.load()
    known = await create(topics, "orders", overrides={"retention.ms": "1"})
    entry = await store.get("topics/orders")
    assert entry is not None
    value = entry.value.replace(b'"retention.ms":"1"', b'"retention.ms":"1","retention.eons":"-1"')
    assert value != entry.value
    later = b'{"topic_id":"%s","partition_count":1,"overrides":{"retention.eons":"-1"}}' % base64.b85encode(bytes(16))
    await store.commit(Transaction(puts={"topics/orders": value, "topics/later": later}))
    found, new = topics.get("orders"), topics.get("later")
    assert found is not None
    assert new is not None
    assert found.topic_id == known.topic_id
    assert found.config.retention_ms == new.config.retention_ms == -1
    assert "topic orders has a config" in caplog.text
    assert failed(await topics.alter([NewConfigs(name="orders", overrides=dict)])).code == error_codes.INVALID_CONFIG
    succeeded(await topics.alter([NewConfigs(name="orders", overrides=lambda _: {"retention.ms": "2"})]))
    with pytest.raises(StartupError, match="topic later"):
        await TopicRegistry(store=store).load()


async def test_a_topic_that_is_created_again_has_another_id(topics: TopicRegistry) -> None:
    first = await create(topics, "orders")
    await topics.delete(["orders"])
    second = await create(topics, "orders")
    assert first.topic_id != second.topic_id
    assert topics.by_id(first.topic_id) is None


async def test_of_two_that_create_the_same_name_at_once_one_wins(topics: TopicRegistry) -> None:
    outcomes: list[Outcome] = []
    seen: list[Topic | None] = []

    async def compete(partition_count: int) -> None:
        outcomes.extend(await topics.create([NewTopic(name="orders", partition_count=partition_count)]))
        seen.append(topics.get("orders"))  # also the loser finds it there

    async with trio.open_nursery() as nursery:
        for partition_count in range(1, 9):
            nursery.start_soon(compete, partition_count)
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
    assert {o.code for o in outcomes if isinstance(o, KafkaError)} == {error_codes.TOPIC_ALREADY_EXISTS}
    assert seen == [winner] * 8
    assert topics.index.partition_count == winner.partition_count


async def test_a_topic_is_invisible_before_its_creation_is_durable(
    store: MemoryMetadataStore, topics: TopicRegistry
) -> None:
    created: list[Topic] = []
    topics.follow(TopicListener(on_created=created.append))
    store.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(create, topics, "orders")
        await trio.testing.wait_all_tasks_blocked()
        assert topics.get("orders") is None
        assert created == []
        store.gate.set()
    assert created == [topics.get("orders")]


async def test_a_change_that_could_not_be_stored_changes_nothing(
    store: MemoryMetadataStore, topics: TopicRegistry
) -> None:
    topic = await create(topics, "orders")
    store.failure = StorageFailed("the disk is lost")
    with pytest.raises(StorageFailed):
        await topics.create([NewTopic(name="other")])
    with pytest.raises(StorageFailed):
        await topics.create_partitions([MorePartitions(name="orders", partition_count=9)])
    with pytest.raises(StorageFailed):
        await topics.delete(["orders"])
    assert topics.all() == [topic]
    assert topics.index.partition_count == 1


async def test_a_topic_of_an_id_is_not_a_later_one_of_its_name(topics: TopicRegistry) -> None:
    former = await create(topics, "orders")
    await topics.delete(["orders"])
    later = await create(topics, "orders")
    error = failed(await topics.delete(["orders"], topic_ids={"orders": former.topic_id}))
    assert error.code == error_codes.UNKNOWN_TOPIC_ID
    assert topics.all() == [later]
    assert succeeded(await topics.delete(["orders"], topic_ids={"orders": later.topic_id})) == later


async def test_a_cancelled_creation_did_not_happen(store: MemoryMetadataStore, topics: TopicRegistry) -> None:
    store.gate = trio.Event()
    with trio.CancelScope() as scope:
        scope.cancel()
        await create(topics, "orders")
    assert topics.all() == []
    store.gate.set()
    await create(topics, "orders")


async def test_one_request_is_one_commit(store: MemoryMetadataStore, topics: TopicRegistry) -> None:
    await topics.create([NewTopic(name=f"t{number}") for number in range(100)])
    assert len(store.commits) == 1
    await topics.delete(f"t{number}" for number in range(100))
    assert len(store.commits) == 2
    assert topics.all() == []


async def test_a_bad_one_of_a_batch_leaves_the_others_alone(topics: TopicRegistry) -> None:
    good, bad, other = await topics.create(
        [NewTopic(name="a"), NewTopic(name="b", partition_count=0), NewTopic(name="c")]
    )
    assert isinstance(good, Topic)
    assert isinstance(bad, KafkaError)
    assert isinstance(other, Topic)
    assert topics.all() == [good, other]


async def test_validate_only_answers_as_if_and_changes_nothing(
    store: MemoryMetadataStore, topics: TopicRegistry
) -> None:
    assert (
        succeeded(await topics.create([NewTopic(name="a", partition_count=2)], validate_only=True)).partition_count == 2
    )
    assert topics.all() == []
    await create(topics, "a")
    more = [MorePartitions(name="a", partition_count=2)]
    assert succeeded(await topics.create_partitions(more, validate_only=True)).partition_count == 2
    bad = [NewConfigs(name="a", overrides=lambda _old: {"retention.ms": "x"})]
    assert failed(await topics.alter(bad, validate_only=True)).code == error_codes.INVALID_CONFIG
    assert topics.get("a").partition_count == 1
    assert len(store.commits) == 1


@pytest.mark.parametrize(
    ("new", "code", "message"),
    [
        (NewTopic(name="a/b"), error_codes.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: 'a/b' contains"),
        (NewTopic(name="taken"), error_codes.TOPIC_ALREADY_EXISTS, "Topic 'taken' already exists."),
        (NewTopic(name="a_b"), error_codes.INVALID_TOPIC_EXCEPTION, "Topic 'a_b' collides with existing topic: a.b"),
        (NewTopic(name="n", partition_count=0), error_codes.INVALID_PARTITIONS, "non-positive"),
        (NewTopic(name="n", partition_count=-2), error_codes.INVALID_PARTITIONS, "non-positive"),
        (NewTopic(name="n", replication_factor=0), error_codes.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (NewTopic(name="n", replication_factor=-2), error_codes.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (NewTopic(name="n", replication_factor=101), error_codes.INVALID_REPLICATION_FACTOR, "at most 100"),
        (NewTopic(name="n", overrides={"x": "1"}), error_codes.INVALID_CONFIG, "Unknown topic config name: x"),
        (NewTopic(name="n", overrides={"retention.ms": "-2"}), error_codes.INVALID_CONFIG, "at least -1"),
    ],
)
async def test_an_invalid_creation_is_refused(topics: TopicRegistry, new: NewTopic, code: int, message: str) -> None:
    await create(topics, "taken")
    await create(topics, "a.b")
    error = failed(await topics.create([new]))
    assert error.code == code
    assert message in error.message


async def test_names_that_collide_within_one_batch(topics: TopicRegistry) -> None:
    first, second, third = await topics.create([NewTopic(name="a.b"), NewTopic(name="a_b"), NewTopic(name="a.b")])
    assert isinstance(first, Topic)
    assert (second.code, third.code) == (error_codes.INVALID_TOPIC_EXCEPTION, error_codes.TOPIC_ALREADY_EXISTS)


async def test_a_name_no_longer_collides_once_the_other_is_deleted(topics: TopicRegistry) -> None:
    await create(topics, "a.b")
    await topics.delete(["a.b"])
    await create(topics, "a_b")


async def test_defaults_are_the_policys(store: MemoryMetadataStore) -> None:
    topics = TopicRegistry(store=store, settings=Settings(default_partitions_count=5))
    topic = await create(topics, "a", -1)
    assert (topic.partition_count, topic.replication_factor) == (5, 1)


async def test_policy_of_settings() -> None:
    settings = Settings(default_partitions_count=4, segment_bytes=1 << 21)
    topics = TopicRegistry(store=MemoryMetadataStore(), settings=settings)
    topic = await create(topics, "a", -1)
    assert (topic.partition_count, topic.config.segment_bytes) == (4, 1 << 21)


async def test_limits_on_topics_and_partitions(store: MemoryMetadataStore) -> None:
    topics = TopicRegistry(store=store, settings=Settings(limits=Limits(max_topics_count=2, max_partitions_count=5)))
    await create(topics, "a", 2)
    assert failed(await topics.create([NewTopic(name="b", partition_count=4)])).code == error_codes.POLICY_VIOLATION
    await create(topics, "b", 2)
    assert failed(await topics.create([NewTopic(name="c", partition_count=1)])).code == error_codes.POLICY_VIOLATION
    too_many = [MorePartitions(name="a", partition_count=4)]
    assert failed(await topics.create_partitions(too_many)).code == error_codes.POLICY_VIOLATION
    succeeded(await topics.create_partitions([MorePartitions(name="a", partition_count=3)]))
    await topics.delete(["b"])
    await create(topics, "c", 2)


async def test_limits_hold_within_one_batch(store: MemoryMetadataStore) -> None:
    topics = TopicRegistry(store=store, settings=Settings(limits=Limits(max_topics_count=3, max_partitions_count=5)))
    outcomes = await topics.create([NewTopic(name=f"t{number}", partition_count=2) for number in range(4)])
    assert [isinstance(outcome, Topic) for outcome in outcomes] == [True, True, False, False]


@pytest.mark.parametrize(("count", "message"), [(3, "Topic already has 3 partition(s)."), (2, "not be an increase")])
async def test_partitions_can_only_grow(topics: TopicRegistry, count: int, message: str) -> None:
    await create(topics, "a", 3)
    error = failed(await topics.create_partitions([MorePartitions(name="a", partition_count=count)]))
    assert error.code == error_codes.INVALID_PARTITIONS
    assert message in error.message


async def test_changes_of_an_unknown_topic(topics: TopicRegistry) -> None:
    outcomes = [
        *await topics.delete(["a"]),
        *await topics.create_partitions([MorePartitions(name="a", partition_count=2)]),
        *await topics.alter([NewConfigs(name="a", overrides=dict)]),
    ]
    assert {outcome.code for outcome in outcomes} == {error_codes.UNKNOWN_TOPIC_OR_PARTITION}


async def test_alter_receives_the_present_overrides_and_replaces_all(topics: TopicRegistry) -> None:
    topic = await create(topics, "a", overrides={"retention.ms": "1", "segment.ms": "2"})
    given: list[Mapping[str, str]] = []

    def change(old: Mapping[str, str]) -> Mapping[str, str]:
        given.append(old)
        return {"segment.ms": "3"}

    changed = succeeded(await topics.alter([NewConfigs(name="a", overrides=change)]))
    assert given == [{"retention.ms": "1", "segment.ms": "2"}]
    assert changed.overrides == {"segment.ms": "3"}
    assert (changed.config.retention_ms, changed.config.segment_ms) == (604_800_000, 3)
    assert changed.topic_id == topic.topic_id
    assert topics.by_id(topic.topic_id) is changed


async def test_listeners_receive_events_in_order(topics: TopicRegistry) -> None:
    heard = recording(topics)
    await topics.create([NewTopic(name="a"), NewTopic(name="b"), NewTopic(name="")])
    await topics.create_partitions([MorePartitions(name="a", partition_count=2)])
    await topics.alter([NewConfigs(name="b", overrides=dict)])
    await topics.delete(["a", "nothing"])
    assert heard == [
        ("created", "a", 1),
        ("created", "b", 1),
        ("changed", "a", 2),
        ("changed", "b", 1),
        ("deleted", "a", 2),
    ]


async def test_log_start_offset_never_goes_back(topics: TopicRegistry, store: MemoryMetadataStore) -> None:
    topic = await create(topics, "a", 2)
    assert topics.log_start_offsets(topic.topic_id) == {}
    await topics.set_log_start_offset(topic.topic_id, 0, 10)
    commits = len(store.commits)
    await topics.set_log_start_offset(topic.topic_id, 0, 5)
    assert topics.log_start_offsets(topic.topic_id) == {0: 10}
    assert len(store.commits) == commits


async def test_of_two_log_start_offsets_at_once_the_larger_one_is_durable(
    topics: TopicRegistry, store: MemoryMetadataStore
) -> None:
    """DeleteRecords and retention know nothing of each other; after a restart the log start had gone back."""
    topic = await create(topics, "a")
    store.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        for offset in (10, 5):
            nursery.start_soon(topics.set_log_start_offset, topic.topic_id, 0, offset)
            await trio.testing.wait_all_tasks_blocked()
        store.gate.set()
    reloaded = TopicRegistry(store=store)
    await reloaded.load()
    assert topics.log_start_offsets(topic.topic_id) == reloaded.log_start_offsets(topic.topic_id) == {0: 10}


async def test_a_deletion_is_remembered_until_nothing_is_left_of_the_topic(
    topics: TopicRegistry, store: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, kept = await create(topics, "a"), await create(topics, "b")
    await topics.delete(["a", "unknown"])
    reloaded = TopicRegistry(store=store)
    await reloaded.load()
    for registry in (topics, reloaded):
        assert {topic_id: each.name for topic_id, each in registry.deleted.items()} == {topic.topic_id: "a"}
    await reloaded.forget_deleted([topic.topic_id, kept.topic_id])
    assert topic.topic_id in reloaded.deleted  # an upload may still be under way
    monkeypatch.setattr("kafscale.cluster.registries.topics.DELETED_REMEMBERED_MS", -1000)
    await reloaded.forget_deleted([topic.topic_id, kept.topic_id])
    assert reloaded.deleted == {}
    assert await store.list("deleted-topics/") == []


async def test_very_many_deleted_topics_are_forgotten_in_small_commits() -> None:
    """One commit named all of them: some 80,000 were too much for the head in the bucket, and none ever went."""
    deletes_counts: list[int] = []

    class Counting(MemoryMetadataStore):
        async def commit(self, transaction: Transaction) -> int:
            deletes_counts.append(len(transaction.deletes))
            return await super().commit(transaction)

    store = Counting()
    await store.commit(Transaction(puts={f"deleted-topics/{number:032x}": DELETED for number in range(2_500)}))
    topics = TopicRegistry(store=store)
    await topics.load()
    deletes_counts.clear()
    await topics.forget_deleted(list(topics.deleted))
    assert topics.deleted == {}
    assert await store.list("deleted-topics/") == []
    assert deletes_counts == [1_000, 1_000, 500]


async def test_an_adopted_topic_that_was_deleted_before_is_not_deleted_any_more(
    topics: TopicRegistry, store: MemoryMetadataStore
) -> None:
    """Its id is the same as then, so its objects would have been taken for orphans."""
    topic_id = bytes(range(16))
    for _ in range(2):
        await topics.create([NewTopic(name="a", partition_count=1, topic_id=topic_id)])
        assert topics.deleted == {}
        assert await store.list("deleted-topics/") == []
        await topics.delete(["a"])
        assert set(topics.deleted) == {topic_id}


async def test_log_start_offset_of_an_unknown_topic(topics: TopicRegistry) -> None:
    with pytest.raises(KafkaError) as caught:
        await topics.set_log_start_offset(bytes(16), 0, 10)
    assert caught.value.code == error_codes.UNKNOWN_TOPIC_ID


async def test_log_start_offset_of_a_topic_deleted_meanwhile_is_not_stored(
    nursery: trio.Nursery, store: MemoryMetadataStore
) -> None:
    """It was, and stayed in the metadata until the next start."""
    grouped = GroupCommit(store)
    await nursery.start(grouped.run)
    topics = TopicRegistry(store=grouped)
    topic = await create(topics, "a")
    store.gate = trio.Event()
    refused: list[int] = []

    async def set_log_start_offset() -> None:
        with pytest.raises(KafkaError) as caught:
            await topics.set_log_start_offset(topic.topic_id, 0, 10)
        refused.append(caught.value.code)

    async with trio.open_nursery() as waiting:
        waiting.start_soon(topics.delete, ["a"])
        await trio.testing.wait_all_tasks_blocked()
        waiting.start_soon(set_log_start_offset)
        await trio.testing.wait_all_tasks_blocked()
        store.gate.set()
    assert refused == [error_codes.UNKNOWN_TOPIC_ID]
    assert topics.log_start_offsets(topic.topic_id) == {}
    assert await store.list("log-start-offsets/") == []


async def test_log_start_offsets_that_an_earlier_version_left_behind_are_removed_at_the_next_start(
    store: MemoryMetadataStore,
) -> None:
    await store.commit(Transaction(puts={f"log-start-offsets/{bytes(16).hex()}/0": b"10"}))
    topics = TopicRegistry(store=store)
    await topics.load()
    assert topics.log_start_offsets(bytes(16)) == {}
    assert await store.list("log-start-offsets/") == []


# ---- two brokers, of which neither knows yet what the other has done ----------------------------------------------


@pytest.fixture
async def brokers() -> tuple[LateMetadataStore, TopicRegistry, TopicRegistry]:
    store = LateMetadataStore()
    return store, TopicRegistry(store=store), TopicRegistry(store=store)


@pytest.mark.parametrize(("one", "other"), [("orders", "orders"), ("a.b", "a_b")])
async def test_one_of_two_colliding_creations_by_different_brokers_is_refused(brokers, one: str, other: str) -> None:
    """Both succeeded: each had looked at what it knew."""
    store, *registries = brokers
    outcomes: list[Outcome] = []

    def creating(topics: TopicRegistry, name: str) -> Callable[[], Awaitable[object]]:
        async def create_it() -> None:
            outcomes.extend(await topics.create([NewTopic(name=name)]))

        return create_it

    await compete(store, creating(registries[0], one), creating(registries[1], other))
    (created,) = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
    (error,) = [outcome for outcome in outcomes if isinstance(outcome, KafkaError)]
    assert error.code == (error_codes.TOPIC_ALREADY_EXISTS if one == other else error_codes.INVALID_TOPIC_EXCEPTION)
    assert registries[0].all() == registries[1].all() == [created]


async def test_two_brokers_that_create_different_topics_both_do(brokers) -> None:
    store, one, other = brokers
    await compete(store, lambda: create(one, "a"), lambda: create(other, "b"))
    assert [topic.name for topic in one.all()] == [topic.name for topic in other.all()] == ["a", "b"]


async def test_two_brokers_together_respect_the_topic_limit() -> None:
    store = LateMetadataStore()
    settings = Settings(limits=Limits(max_topics_count=1))
    one, other = TopicRegistry(store=store, settings=settings), TopicRegistry(store=store, settings=settings)
    await compete(store, lambda: one.create([NewTopic(name="a")]), lambda: other.create([NewTopic(name="b")]))
    assert len(one.all()) == len(other.all()) == 1


async def test_configs_that_two_brokers_set_at_once_are_both_set(brokers) -> None:
    """The later one had written over the earlier one what it had known before that."""
    store, one, other = brokers
    await compete(store, lambda: create(one, "a"))

    def setting(topics: TopicRegistry, name: str) -> Callable[[], Awaitable[object]]:
        return lambda: topics.alter([NewConfigs(name="a", overrides=lambda old: {**old, name: "100"})])

    await compete(store, setting(one, "retention.ms"), setting(other, "segment.ms"))
    assert one.get("a").overrides == other.get("a").overrides == {"retention.ms": "100", "segment.ms": "100"}


async def test_log_start_offsets_of_two_brokers_never_go_back(brokers) -> None:
    store, one, other = brokers
    await compete(store, lambda: create(one, "a"))
    topic = one.get("a")
    await compete(
        store,
        lambda: one.set_log_start_offset(topic.topic_id, 0, 10),
        lambda: other.set_log_start_offset(topic.topic_id, 0, 5),
    )
    assert one.log_start_offsets(topic.topic_id) == other.log_start_offsets(topic.topic_id) == {0: 10}


async def test_a_creation_that_is_always_overtaken_times_out_and_can_be_retried() -> None:
    @attrs.define(eq=False)
    class Disturbed(MemoryMetadataStore):
        """Somebody is faster, whatever is planned."""

        disturbed_count: int = 0
        is_calm: bool = False

        async def commit(self, transaction: Transaction) -> int:
            if transaction.planned_from is not None and not self.is_calm:
                self.disturbed_count += 1
                await super().commit(Transaction(puts={f"deleted-topics/{self.disturbed_count:032x}": DELETED}))
            return await super().commit(transaction)

    store = Disturbed()
    topics = TopicRegistry(store=store)
    assert failed(await topics.create([NewTopic(name="a")])).code == error_codes.REQUEST_TIMED_OUT
    assert store.disturbed_count == len(topics.deleted) == PLAN_ATTEMPTS_MAX_COUNT
    assert topics.all() == []
    store.is_calm = True
    await create(topics, "a")


async def test_commits_of_another_registry_are_applied_and_announced_to_listeners(
    topics: TopicRegistry, store: MemoryMetadataStore
) -> None:
    """As another broker's commits will be. Both hear the same, and have the same."""
    other = TopicRegistry(store=store)
    heard, others = recording(topics), recording(other)
    topic = await create(other, "a", 2, overrides={"retention.ms": "5"})
    assert topics.get("a") == topic
    await topics.create_partitions([MorePartitions(name="a", partition_count=3)])
    await other.set_log_start_offset(topic.topic_id, 2, 10)
    assert topics.log_start_offsets(topic.topic_id) == {2: 10}
    assert failed(await topics.create([NewTopic(name="a")])).code == error_codes.TOPIC_ALREADY_EXISTS
    await other.alter([NewConfigs(name="a", overrides=lambda _old: {})])
    assert topics.get("a").overrides == {}
    await other.delete(["a"])
    await create(topics, "b")
    assert (
        heard
        == others
        == [
            ("created", "a", 2),
            ("changed", "a", 3),
            ("changed", "a", 3),
            ("deleted", "a", 3),
            ("created", "b", 1),
        ]
    )
    assert topics.all() == other.all()
    assert topics.deleted == other.deleted
    assert topics.deleted.keys() == {topic.topic_id}
    assert topics.log_start_offsets(topic.topic_id) == other.log_start_offsets(topic.topic_id) == {}


async def test_following_ends_where_a_load_would(topics: TopicRegistry, store: MemoryMetadataStore) -> None:
    """One function applies what changes and what is loaded."""
    adopted = bytes(range(16))
    for _ in range(2):
        await topics.create([NewTopic(name="a", partition_count=2, topic_id=adopted, log_start_offsets={0: 7, 1: 8})])
        await topics.set_log_start_offset(adopted, 0, 9)
        await create(topics, "b.1", 3)
        await topics.alter([NewConfigs(name="b.1", overrides=lambda old: {**old, "retention.ms": "1"})])
        loaded = TopicRegistry(store=store)
        await loaded.load()
        for each in (topics, loaded):
            assert each.log_start_offsets(adopted) == {0: 9, 1: 8}
        assert (loaded.all(), loaded.deleted, loaded.index.partition_count) == (topics.all(), topics.deleted, 5)
        await topics.delete(["a", "b.1"])
    loaded = TopicRegistry(store=store)
    await loaded.load()
    assert (loaded.all(), loaded.deleted) == ([], topics.deleted)
    assert topics.index.partition_count == 0


async def test_a_listener_sees_the_log_starts_of_an_adopted_topic(topics: TopicRegistry) -> None:
    seen: list[Mapping[int, int]] = []
    topics.follow(TopicListener(on_created=lambda topic: seen.append(dict(topics.log_start_offsets(topic.topic_id)))))
    await topics.create([NewTopic(name="a", partition_count=1, topic_id=bytes(16), log_start_offsets={0: 7})])
    assert seen == [{0: 7}]


async def test_a_topic_of_another_id_in_the_place_of_one_is_a_new_one(
    topics: TopicRegistry, store: MemoryMetadataStore
) -> None:
    old = await create(topics, "a", 2)
    heard = recording(topics)
    scratch = MemoryMetadataStore()
    new = await create(TopicRegistry(store=scratch), "a", 3)
    entry = await scratch.get("topics/a")
    await store.commit(Transaction(puts={"topics/a": entry.value}))
    assert heard == [("deleted", "a", 2), ("created", "a", 3)]
    assert topics.get("a") == new
    assert topics.by_id(old.topic_id) is None


async def test_a_cancelled_creation_is_visible_once_durable_and_blocks_a_duplicate(
    autojump_clock, nursery: trio.Nursery, store: MemoryMetadataStore
) -> None:
    """It was in the metadata, but not in memory: the name was given to a second topic."""
    grouped = GroupCommit(store)
    await nursery.start(grouped.run)
    topics = TopicRegistry(store=grouped)
    heard = recording(topics)
    store.gate = trio.Event()
    with trio.move_on_after(1) as scope:
        await create(topics, "a")
    assert scope.cancelled_caught
    outcomes: list[Outcome] = []

    async def create_again() -> None:
        outcomes.extend(await topics.create([NewTopic(name="a")]))

    async with trio.open_nursery() as waiting:
        waiting.start_soon(create_again)
        await trio.testing.wait_all_tasks_blocked()
        store.gate.set()
    assert failed(outcomes).code == error_codes.TOPIC_ALREADY_EXISTS
    assert heard == [("created", "a", 1)]


async def test_a_full_disk_refuses_a_creation_without_side_effects(
    topics: TopicRegistry, store: MemoryMetadataStore
) -> None:
    heard = recording(topics)
    store.full = True
    assert failed(await topics.create([NewTopic(name="a")])).code == error_codes.KAFKA_STORAGE_ERROR
    assert (topics.all(), heard) == ([], [])
    store.full = False
    await create(topics, "a")
    assert heard == [("created", "a", 1)]


async def test_a_listener_first_receives_changes_since_its_snapshot(topics: TopicRegistry) -> None:
    for name in ("deleted", "grown", "kept", "replaced"):
        await create(topics, name)
    seen = topics.all()
    await topics.delete(["deleted", "replaced"])
    await create(topics, "new")
    await create(topics, "replaced", 2)
    await topics.create_partitions([MorePartitions(name="grown", partition_count=3)])
    told = recording(topics, seen)
    assert told == [
        ("deleted", "deleted", 1),
        ("deleted", "replaced", 1),
        ("changed", "grown", 3),
        ("created", "new", 1),
        ("created", "replaced", 2),
    ]
    await create(topics, "later")
    assert told[5:] == [("created", "later", 1)]


async def test_a_change_is_visible_before_its_listener_runs(topics: TopicRegistry) -> None:
    seen: list[tuple[bool, bool]] = []
    topics.follow(
        TopicListener(
            on_created=lambda topic: seen.append((topics.get(topic.name) is topic, topic.topic_id in topics.deleted)),
            on_deleted=lambda topic: seen.append((topics.get(topic.name) is None, topic.topic_id in topics.deleted)),
        )
    )
    await create(topics, "a")
    await topics.delete(["a"])
    assert seen == [(True, False), (True, True)]


async def test_a_listener_reads_the_revision_of_its_change(topics: TopicRegistry, store: MemoryMetadataStore) -> None:
    """By which a deletion's objects wait until a checkpoint has it."""
    noted: list[int] = []
    topics.follow(TopicListener(on_deleted=lambda topic: noted.append(store.revision)))
    topic = await create(topics, "a")
    await topics.delete(["a"])
    await create(topics, "b")
    (deleted,) = await store.list("deleted-topics/")
    assert (deleted.key, [deleted.revision]) == (f"deleted-topics/{topic.topic_id.hex()}", noted)


async def test_each_change_has_an_outcome_where_nothing_can_be_planned_as_an_earlier_outcome_is_unknown() -> None:
    """Beside others, where the local disk was full, whoever asked for a coordinator got a traceback."""

    class Failing(MemoryMetadataStore):
        is_failing = False

        async def commit(self, transaction: Transaction) -> int:
            if self.is_failing:
                raise KafkaError(error_codes.REQUEST_TIMED_OUT, "nobody knows")
            return await super().commit(transaction)

    store = Failing()
    topics = TopicRegistry(store=store)
    store.is_failing = True
    for _ in range(2):
        outcomes = await topics.create([NewTopic(name="a"), NewTopic(name="b")])
        assert [failed([each]).code for each in outcomes] == [error_codes.REQUEST_TIMED_OUT] * 2
    store.is_failing = False
    await create(topics, "a")
