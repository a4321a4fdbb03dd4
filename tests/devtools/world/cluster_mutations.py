"""Mutations of brokers in a cluster: each breaks a rule, which the simulation must notice.

`simulate --cluster SEEDS --mutation NAME` looks for seeds that find one, with `--short` for those that only successions
find (`weather`). Some need several coincidences. Each successor sees the decision about merged segments before any is
deleted, so "delete without looking" shows only to a look between the merged segment's PUT and its arrival. The first
segment of an epoch shows where it began too, so "ignore where epochs began" needs a leader that had written none, and
was asked, or superseded by a third one, behind which a segment of the first has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from typing import Any

import attrs
import trio

from kafscale import broker
from kafscale.buffers import Buffer
from kafscale.cluster.membership.leading import leading
from kafscale.cluster.membership.leading.leading import Leading
from kafscale.cluster.membership.peers.liveness import StoreLoss
from kafscale.cluster.membership.records import BrokerRecord, Placement
from kafscale.cluster.membership.start.claim import LeadCheck
from kafscale.cluster.membership.start.starting import MembershipCheck
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.config import Durability
from kafscale.formats.manifest import Segment
from kafscale.formats.resolution import _Judge
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_runs import LogRun
from kafscale.log.hand_over import release_partition
from kafscale.log.rewrite.rewriting import Rewriter
from kafscale.log.wal.s3_replay import _Epoch
from kafscale.store.base import ForwardingStore
from kafscale.store.guarded import DeletionGuard
from kafscale.store.paths import SegmentKey
from tests.devtools.world.determinism import replaced
from tests.devtools.world.extent import LONG
from tests.devtools.world.weather import is_storm, is_succession
from tests.devtools.world.world import durability_of


async def _look_without_conclusion(check: MembershipCheck) -> None:
    await check.metadata.refresh()


async def _know_nothing(check: MembershipCheck) -> None:
    await trio.lowlevel.checkpoint()


@contextmanager
def _acknowledge_behind_the_fence() -> Iterator[None]:
    """Check for another leader neither after an upload nor before a commit."""
    with replaced(MembershipCheck, "look_once", _look_without_conclusion):
        with replaced(MembershipCheck, "check_known", _know_nothing):
            yield


@contextmanager
def _grant_before_release() -> Iterator[None]:
    async def commit_first(self: Leading, topic: Any, index: int) -> None:
        partition_id = topic.topic_id, index
        partition, placement = self.log.partitions.get(partition_id), self.state.placement(*partition_id)
        assert placement is not None

        def lead_elsewhere(current: Placement, number: int) -> Placement:
            leader = current.leader if current.target is None else current.target
            return attrs.evolve(current, leader=leader, epoch=number, target=None)

        await self.writer.change(topic.topic_id, index, placement.epoch, lead_elsewhere)
        if partition is not None:
            await release_partition(self.log, partition)

    with replaced(Leading, "_hand_over", commit_first):
        yield


@attrs.define(eq=False)
class _Unconditional(ForwardingStore):
    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        return await self.store.put(key, parts)


@contextmanager
def _overwrite_the_head() -> Iterator[None]:
    initialise = SharedMetadataStore.__init__

    def initialise_without_conditions(self: Any, local: Any, store: Any, *arguments: Any) -> None:
        initialise(self, local, _Unconditional(store), *arguments)

    with replaced(SharedMetadataStore, "__init__", initialise_without_conditions):
        yield


async def _find_without_fence(epoch: _Epoch, run: LogRun) -> bool:
    """Take the end of a stream for its fence."""
    await trio.lowlevel.checkpoint()
    return True


async def _confirm_nothing(guard: DeletionGuard, decided: int) -> None:
    await trio.lowlevel.checkpoint()


@contextmanager
def _delete_without_looking() -> Iterator[None]:
    """Delete rewritten segments without checking whether another broker leads by now."""
    initialise = Rewriter.__init__

    def initialise_without_check(self: Any, **given: Any) -> None:
        initialise(self, **{**given, "check_lead": trio.lowlevel.checkpoint})

    with replaced(DeletionGuard, "confirm", _confirm_nothing):
        with replaced(Rewriter, "__init__", initialise_without_check):
            yield


def _find_nothing_late(judge: _Judge, segments: Sequence[Segment]) -> set[SegmentKey]:
    return set()


def _begun_nowhere(placement: Placement) -> tuple[EpochStart, ...]:
    return ()


async def _first_error(check: LeadCheck, error: Exception, may_wait: Callable[[], bool]) -> Exception:
    """End by the first error, without asking the bucket for its cause."""
    await trio.lowlevel.checkpoint()
    return error


def _lose_nothing(loss: StoreLoss, records: Mapping[int, BrokerRecord]) -> Mapping[int, str]:
    return {}


def _believe_all(loss: StoreLoss, records: Mapping[int, BrokerRecord]) -> Mapping[int, str]:
    """Believe a broker that reports a silent store, even if the store has not answered this one either."""
    return {
        broker_id: "so it says" for broker_id, told in loss._silences.items() if told.seconds >= loss.timeout_seconds
    }


MUTATIONS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "acknowledge behind the fence": _acknowledge_behind_the_fence,
    "grant before release": _grant_before_release,
    "overwrite the head": _overwrite_the_head,
    "skip the fence": partial(replaced, _Epoch, "_has_ended", _find_without_fence),
    "late segment accepted": partial(replaced, _Judge, "find_late", _find_nothing_late),
    "delete without looking": _delete_without_looking,
    "ignore where epochs began": partial(replaced, leading, "begun", _begun_nowhere),
    "end by the first error": partial(replaced, broker, "cause_of_end", _first_error),
    "keep who has lost the store": partial(replaced, StoreLoss, "lost", _lose_nothing),
    "fence where all have lost the store": partial(replaced, StoreLoss, "lost", _believe_all),
}
IN_STORE_LOSSES = {"keep who has lost the store", "fence where all have lost the store"}
# What only storms of such a durability find, and seldom others; and what short seeds do that are successions.
IN_STORMS: Mapping[str, Durability] = {
    "late segment accepted": Durability.SEGMENT,
}
IN_SUCCESSIONS: Mapping[str, Durability] = {
    "delete without looking": Durability.SEGMENT,
    "ignore where epochs began": Durability.SEGMENT,
}


def seeds_for(mutation: str) -> Iterator[int]:
    """Iterate over seeds that may find a mutation, without end; those of IN_SUCCESSIONS are short seeds."""
    if mutation in IN_STORE_LOSSES:
        return filter(LONG.loses_store, count(1))
    if mutation in IN_STORMS:
        return (seed for seed in count(1) if is_storm(seed) and durability_of(seed) is IN_STORMS[mutation])
    if mutation in IN_SUCCESSIONS:
        of_merges, durability = mutation == "delete without looking", IN_SUCCESSIONS[mutation]
        return (seed for seed in count(1) if is_succession(seed, of_merges) and durability_of(seed) is durability)
    return count(1)
