"""Random troubles of a simulated broker, each for a while, until cancelled."""

from __future__ import annotations

import errno
import math
from random import Random

import attrs
import trio

from kafscale.errors import SlowDown, StoreUnavailable
from kafscale.log.check.wal_check import WalFileCheck
from kafscale.log.wal.local_replay import NAME
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On, Rule
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.memory_network import MemoryNetwork

PAUSE_MEAN_SECONDS = 0.2
TROUBLE_MAX_SECONDS = 1.0
ESSENTIAL_COUNT = 1_000_000  # more than a life has


async def trouble_store(store: FaultyStore, random: Random) -> None:
    """Let requests fail now and then; bursts of SlowDown, outages, hanging requests, truncated bodies."""
    store.heal()
    store.unreliable(random.choice([0.0, 0.05, 0.3]), delay_seconds=random.choice([0.0, 0.02, 0.2]))
    while True:
        await trio.sleep(random.expovariate(1 / PAUSE_MEAN_SECONDS))
        kind = random.randrange(4)
        seconds = random.uniform(0, TROUBLE_MAX_SECONDS)
        if kind == 0:
            await _for_a_while(store, seconds, store.fail(On(probability=0.9), SlowDown))
        elif kind == 1:
            await _for_a_while(store, seconds, store.fail(On(), StoreUnavailable))
        elif kind == 2:
            await _hang(store, seconds, On(random.choice(["put*", "get*", "*"]), probability=0.3), random)
        else:
            store.truncate(On("get*", random.choice(["*.kfs", "*.index"]), times=1))


async def _for_a_while(store: FaultyStore, seconds: float, rule: Rule) -> None:
    try:
        await trio.sleep(seconds)
    finally:
        store.end(rule)


async def _hang(store: FaultyStore, seconds: float, on: On, random: Random) -> None:
    gate = store.hold(on, after_effect=random.random() < 0.5)
    rule = store.rules[-1]
    try:
        await _for_a_while(store, seconds, rule)
    finally:
        gate.open()


async def trouble_network(network: MemoryNetwork, random: Random) -> None:
    """Resets, connections that fall silent and are reset later, delays, little bandwidth."""
    while True:
        await trio.sleep(random.expovariate(1 / PAUSE_MEAN_SECONDS))
        kind = random.randrange(4)
        streams = [stream for stream in network.streams if not stream.is_silent]
        if kind == 0 and streams:
            random.choice(streams).cut()
        elif kind == 1 and streams:
            silent = random.choice(streams)
            silent.fall_silent()
            try:
                await trio.sleep(random.uniform(0, TROUBLE_MAX_SECONDS))
            finally:
                silent.cut()
        elif kind == 2:
            network.delay_seconds = random.choice([0.0, 0.005, 0.1])
        else:
            network.set_bandwidth(random.choice([math.inf, 20_000.0, 200_000.0]))


@attrs.frozen
class Damage:
    """A flipped bit of a file. `undo` flips it back, as a backup would."""

    name: str
    position: int
    bit: int

    def undo(self, disk: MemoryDisk) -> None:
        disk.flip_bit(self.name, self.position, self.bit)


def damage_log(disk: MemoryDisk, random: Random) -> Damage | None:
    """Flip a written bit in a log file that has a successor; None if there is no such file.

    In the last file damage looks like a write that a crash cut off. Bytes behind the last entry are unused.
    """
    checks = [WalFileCheck(name=name, content=disk.files[name]) for name in sorted(disk.files) if NAME.fullmatch(name)]
    started = [check for check in checks if check.started]
    if len(started) < 2:
        return None
    check = random.choice(started[:-1])
    for _ in check.entries():
        pass
    damage = Damage(check.name, random.randrange(check.end), random.randrange(8))
    disk.flip_bit(damage.name, damage.position, damage.bit)
    return damage


def trouble_disk(disk: MemoryDisk, random: Random, file_bytes: int) -> None:
    """Make a disk slow, full or broken. `file_bytes` is the size of the log's files."""
    disk.sync_seconds = random.choice([0.0, 0.002, 0.02])
    disk.create_seconds = random.choice([0.0, 0.05])
    if random.random() < 0.15:
        disk.free_bytes = random.randrange(3) * file_bytes
    if random.random() < 0.15:
        operation = random.choice(["write", "sync", "create", "read"])
        error_number = random.choice([errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
        disk.fail(operation, after=random.randrange(20), error_number=error_number)


async def trouble_metadata(metadata: MemoryMetadataStore, random: Random) -> None:
    metadata.reserved_count = ESSENTIAL_COUNT
    while True:
        await trio.sleep(random.expovariate(1 / PAUSE_MEAN_SECONDS))
        metadata.full = True
        try:
            await trio.sleep(random.uniform(0, TROUBLE_MAX_SECONDS))
        finally:
            metadata.full = False
