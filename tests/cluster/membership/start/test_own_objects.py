"""The claim and the checkpoints: what is damaged is found; a claim is written anew so that the next start works."""

import pytest

from kafscale.cluster.membership.start.claim import Claim, claim, claim_key
from kafscale.cluster.membership.start.own_objects import OwnObjects
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.formats.metadata_changes import Transaction
from kafscale.formats.wal_objects import START, WalPosition
from kafscale.log.bucket.manifest_keeper import encode_manifests
from kafscale.log.repair.verify_segment import FindingKind
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import NumberedKey, system_key
from tests.formats.metadata_checkpoints import encode_checkpoint

A_TOPIC = Transaction(puts={"topics/a": b"{}"})
CLAIM_KEY = claim_key("default")
CLAIM = Claim(epoch=7, broker_id=0, directory_id="d", acknowledges_locally=False)


def key(number, epoch=7):
    return NumberedKey(kind="checkpoint", epoch=epoch, number=number).key


async def bucket(*, claimed=CLAIM, positions=((7, 3), (7, 9))):
    store = MemoryStore()
    if claimed is not None:
        await store.put(CLAIM_KEY, [encode(claimed)])
    for number, position in enumerate(positions):
        await store.put(key(number), encode_checkpoint(WalPosition(*position), [A_TOPIC]))
    return store


async def looked_at(store, *, leader_epoch=-1, repair=False):
    look = OwnObjects(store=store, namespace="default")
    position = await look.read()
    await look.check_claim(leader_epoch)
    if repair:
        await look.repair()
    return look, position


def told(look):
    return [(finding.name, finding.kind, finding.damage) for finding in look.findings]


async def test_an_intact_bucket_has_no_findings():
    look, position = await looked_at(await bucket(), leader_epoch=7)
    assert (look.findings, look.checkpoint_count, position) == ([], 2, WalPosition(7, 9))
    assert await look.has_all_metadata()


async def test_a_damaged_checkpoint_of_the_manifests_is_found():
    store = await bucket()
    names = [NumberedKey(kind="manifests", epoch=7, number=number).key for number in range(2)]
    await store.put(names[0], await encode_manifests([]))
    assert told((await looked_at(store))[0]) == []
    await store.put(names[1], [b"damaged"])
    assert told((await looked_at(store))[0]) == [(names[1], FindingKind.CHECKPOINT, True)]


async def test_an_empty_bucket_has_nothing_wrong():
    look, position = await looked_at(MemoryStore())
    assert (look.findings, position) == ([], START)
    assert not await look.has_all_metadata()


async def test_a_damaged_checkpoint_is_found_and_the_other_one_counts():
    store = await bucket()
    data = bytes((await store.get(key(1))).data)
    await store.put(key(1), [data[:-1] + bytes([data[-1] ^ 1])])
    look, position = await looked_at(store)
    assert told(look) == [(key(1), FindingKind.CHECKPOINT, True)]
    assert position == WalPosition(7, 3)


async def test_a_delta_checkpoint_without_its_full_checkpoint_is_damaged():
    store = await bucket()
    await store.put(key(2), encode_checkpoint(WalPosition(7, 11), [A_TOPIC], base=0))
    assert told((await looked_at(store))[0]) == []
    await store.delete([key(0)])
    look, position = await looked_at(store)
    assert (told(look), position) == ([], WalPosition(7, 11))
    await store.delete([key(1)])
    assert told((await looked_at(store))[0]) == [(key(2), FindingKind.CHECKPOINT, True)]
    await store.put(key(3), encode_checkpoint(WalPosition(7, 12), [A_TOPIC]))
    assert told((await looked_at(store))[0]) == []


async def test_a_checkpoint_of_a_later_epoch_than_its_key_is_damage():
    look, _ = await looked_at(await bucket(positions=[(8, 0)]))
    assert told(look) == [(key(0), FindingKind.CHECKPOINT, True)]


async def test_a_missing_claim_is_noted():
    look, _ = await looked_at(await bucket(claimed=None))
    assert told(look) == [(CLAIM_KEY, FindingKind.CLAIM, False)]


@pytest.mark.parametrize("leader_epoch", [7, 9])
@pytest.mark.parametrize("content", [b"", b"{}"])
async def test_a_damaged_claim_is_repaired_and_the_next_start_takes_a_higher_epoch(content, leader_epoch):
    store = await bucket()
    await store.put(CLAIM_KEY, [content])
    look, _ = await looked_at(store, leader_epoch=leader_epoch, repair=True)
    assert told(look) == [(CLAIM_KEY, FindingKind.CLAIM, True)]
    assert look.findings[0].repaired
    claimed = await claim(
        store, "default", Claim(epoch=0, broker_id=1, directory_id="new", acknowledges_locally=False), least_epoch=zero
    )
    assert claimed.claim.epoch == leader_epoch + 1
    assert claimed.must_wait


async def zero():
    return 0


async def test_a_claim_older_than_the_objects_is_repaired():
    store = await bucket(claimed=Claim(epoch=5, broker_id=0, directory_id="d", acknowledges_locally=True))
    look, _ = await looked_at(store, repair=True)
    assert "says epoch 5, but there are objects of epoch 7" in look.findings[0].message
    assert decode(Claim, bytes((await store.get(CLAIM_KEY)).data)).epoch == 7


async def test_an_unknown_system_object_is_reported():
    store = await bucket()
    await store.put(system_key("probe", "left"), [b"x"])
    look, _ = await looked_at(store)
    assert told(look) == [(system_key("probe", "left"), FindingKind.UNKNOWN_OBJECT, False)]
