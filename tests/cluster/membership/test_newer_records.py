"""Brokers beside one of a later version, whose records they can't read: they serve on, and decide nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.placement import controller
from kafscale.cluster.membership.records import CONTROLLER_KEY, NEXT_NUMBER_KEY, BrokerState, record_key
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries.topic_records import topic_key
from kafscale.cluster.registries.topics import MorePartitions, NewConfigs
from kafscale.config import Durability
from kafscale.errors import KafkaError, NotFound, StoreUnavailable
from kafscale.formats.placements import row_key
from kafscale.formats.wal_runs import wal_key
from kafscale.store.versions import list_versions
from kafscale.wire import error_codes
from tests.cluster.membership.test_fail_over import Cluster, check_goes_on, cluster, topic_of
from tests.cluster.membership.test_several import TOPIC, create, led_by, move, until

NEWCOMER, KNOWN = 9, 8
STRANGE_TOPIC = b"\x05" * 16
LATER_VALUE = b'{"format":9}'


async def commit(running: Cluster, transaction: Transaction) -> None:
    """Commit as a broker of a later version does, and wait until all have looked."""
    await running.brokers[1].broker.services.topics.store.commit(transaction)
    await trio.sleep(2.0)


async def test_unreadable_records_of_a_later_version_make_brokers_stop_deciding(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state of brokers that is not known ended all that did not know it, and so did a row of placements."""
    monkeypatch.setattr(controller, "BALANCE_SECONDS", 0.01)  # a look at streams comes before it has stepped down
    async with cluster(3, Durability.S3_WAL) as running:
        await topic_of(running, 6)
        state = running.state(1)
        number = state.next_number
        mine = json.loads(encode(state.brokers[1]))
        newcomer = mine | {"incarnation": number, "state": "resting", "directory_id": "new"}
        later = {
            record_key(NEWCOMER): json.dumps(newcomer).encode(),
            record_key(KNOWN): json.dumps(newcomer | {"incarnation": number + 1, "state": "away"}).encode(),
            row_key(STRANGE_TOPIC, 0): LATER_VALUE,
            f"{row_key(STRANGE_TOPIC, 0)}/more": LATER_VALUE,
            "assignments/by-rack": LATER_VALUE,
            "brokers/1/disks/record": LATER_VALUE,
            "topics/later": LATER_VALUE,
            f"deleted-topics/{STRANGE_TOPIC.hex()}": LATER_VALUE,
            "acls/1": LATER_VALUE,
            "quotas/user=u": b"[]",
            "group-configs/g": b"[]",
        }
        stream = wal_key("default", number, 1).key
        await running.bucket.put(stream, [bytes(1000)])
        await commit(running, Transaction(puts={**later, NEXT_NUMBER_KEY: encode(number + 2)}))
        await until(lambda: running.controller() == -1)
        assert set(running.state(1).unreadable) == {record_key(NEWCOMER), row_key(STRANGE_TOPIC, 0)}
        await trio.sleep(60.0)
        assert running.controller() == -1
        assert "a broker of a later version is to be the controller" in caplog.text
        assert (await running.bucket.head(stream)).size_bytes == 1000, "nobody knows whether it is needed"
        await check_goes_on(running, 6, [1, 2, 3])
        await commit(running, Transaction(deletes=list(later)))
        await until(lambda: running.controller() > 0)
        assert not running.state(1).unreadable
        await trio.sleep(10.0)
        with pytest.raises(NotFound):
            await running.bucket.head(stream)
        dead = running.others(running.controller())[0]
        running.brokers[dead].kill()
        await until(lambda: running.all_led(6, running.others(dead)))


async def test_a_broker_that_cannot_read_the_controller_record_steps_down(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The last that it could read was itself: it wrote checkpoints and balanced, and stepped down again and again."""
    async with cluster(3, Durability.S3_WAL) as running:
        await topic_of(running, 6)
        value = encode(running.state(1).controller)
        await commit(running, Transaction(puts={CONTROLLER_KEY: LATER_VALUE, NEXT_NUMBER_KEY: encode(1_000)}))
        count = await checkpoints_count(running)
        await running.brokers[1].broker.services.topics.store.commit(Transaction(puts={"some/key": b"{}"}))
        await trio.sleep(60.0)
        assert "tries again later" not in caplog.text
        assert await checkpoints_count(running) == count
        await check_goes_on(running, 6, [1, 2, 3])
        await commit(running, Transaction(puts={CONTROLLER_KEY: value}))
        await trio.sleep(60.0)
        assert await checkpoints_count(running) > count


async def checkpoints_count(running: Cluster) -> int:
    """Return the number of the last one."""
    return max(key.number for key in await list_versions(running.bucket, "default", "checkpoint"))


async def test_a_broker_that_cannot_read_its_record_serves_and_commits_nothing(autojump_clock: MockClock) -> None:
    async with cluster(3, Durability.S3_WAL) as running:
        await topic_of(running, 6)
        mine = json.loads(encode(running.state(1).brokers[2]))
        key = record_key(2)
        await commit(running, Transaction(puts={key: json.dumps(mine | {"state": "resting"}).encode()}))
        await trio.sleep(30.0)
        await check_goes_on(running, 6, [1, 2, 3])
        with pytest.raises(KafkaError, match="written by a later version") as refused:
            await running.brokers[1].broker.services.membership.set_draining(2, is_draining=True)
        assert refused.value.code == error_codes.INVALID_REQUEST
        with pytest.raises(StoreUnavailable, match="upgrade it"):
            await create(running.brokers[2].broker, 1, "more")
        assert running.state(1).brokers[2].state is BrokerState.LIVE
        await commit(running, Transaction(puts={key: json.dumps(mine).encode()}))
        await create(running.brokers[2].broker, 1, "more")


async def test_fields_of_a_later_version_survive_each_change(autojump_clock: MockClock) -> None:
    """A broker of the earlier version wrote the row of a hundred partitions, or a topic, back without it."""
    async with cluster(3, Durability.S3_WAL) as running:
        topic = await topic_of(running, 6)
        services = running.brokers[1].broker.services
        row = row_key(topic.topic_id, 0)
        added = {
            row: {"pinned": {str(index): [index, {"x": None}] for index in range(6)}, "notes": {"3": "n"}},
            topic_key(TOPIC): {"tags": ["a"]},
            record_key(2): {"is_cordoned": False},
        }

        async def told(key: str) -> Mapping[str, object]:
            entry = await services.topics.store.get(key)
            assert entry is not None
            return json.loads(entry.value)  # type: ignore[no-any-return]

        async def check() -> None:
            await services.topics.store.refresh()  # type: ignore[attr-defined]
            for key, columns in added.items():
                assert {name: (await told(key)).get(name) for name in columns} == columns

        puts = {key: json.dumps({**await told(key), **columns}).encode() for key, columns in added.items()}
        await commit(running, Transaction(puts=puts))
        placed = [await told(row)]

        async def has_changed() -> None:
            await check()
            placed.append(await told(row))
            assert placed[-1] != placed[-2]

        (index, *_) = led_by(running.brokers[1].broker)
        await move(running.brokers[1], [index], 3)
        await until(lambda: index in led_by(running.brokers[3].broker))
        await has_changed()
        await services.membership.set_draining(2, is_draining=True)
        await until(lambda: not led_by(running.brokers[2].broker))
        await has_changed()
        await services.membership.set_draining(2, is_draining=False)
        await until(lambda: led_by(running.brokers[2].broker))
        await has_changed()
        await services.topics.alter([NewConfigs(name=TOPIC, overrides=lambda old: {**old, "retention.ms": "-1"})])
        await services.topics.create_partitions([MorePartitions(name=TOPIC, partition_count=8)])
        await until(lambda: running.all_led(8, [1, 2, 3]))
        await has_changed()
        running.brokers[3].kill()
        await until(lambda: running.all_led(8, [1, 2]))
        await has_changed()
        await running.start(3, Durability.S3_WAL)
        await until(lambda: led_by(running.brokers[3].broker))
        await has_changed()
        running.brokers[3].kill()
        await running.start(3, Durability.S3_WAL)  # before it is missed: it leads what it led with another epoch
        assert led_by(running.brokers[3].broker)
        await has_changed()
        running.brokers[2].kill()
        await until(lambda: running.state(1).brokers[2].state is BrokerState.FENCED)
        await has_changed()
        assert (await told(topic_key(TOPIC)))["overrides"] == {"retention.ms": "-1"}
