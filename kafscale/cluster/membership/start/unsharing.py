"""Gives a shared bucket back to its last broker: a command, when that broker has stopped.

    look            the broker is the only one registered, has stopped in order, and all its records are in segments
    end the head    one conditional write: the head holds the claim of a lone broker, and no broker can join or commit
    finish          a checkpoint of the metadata, without brokers and placements; the claim becomes the bucket's

Once the head has ended, the next start finishes, on any data directory. The head stays, for brokers that wake up late.
Its claim has a number above all of theirs: so epochs go on growing.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress

import attrs

from kafscale.cluster.membership.records import BROKERS, CONTROLLER_KEY, NEXT_NUMBER_KEY, BrokerState, parse_record_key
from kafscale.cluster.membership.start.claim import SEVERAL, Claim, claim_key, decode_claim, read_claim
from kafscale.cluster.membership.start.recovery import find_head
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import POSITION_KEY, LocalMetadataStore, Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer, find_checkpoints
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.errors import NotFound, PreconditionFailed, StartupError
from kafscale.formats.metadata_head import head_key
from kafscale.formats.placements import ASSIGNMENTS
from kafscale.formats.wal_objects import WalPosition
from kafscale.log.wal.streams import delete_unneeded
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import guarded
from kafscale.store.version_writer import KEPT_COUNT, VersionWriter
from kafscale.store.versions import list_versions

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Unsharing:
    """Ends the sharing of a bucket. `local` is the metadata of a data directory that no broker uses."""

    store: ObjectStore
    namespace: str
    local: LocalMetadataStore

    async def run(self, broker_id: int, directory_id: str) -> None:
        """Give the bucket to its last broker; repeated, it changes nothing.

        Raises StartupError if there are other brokers, or data that the bucket lacks; DamagedObject, StoreError.
        """
        if await self.finish():
            return
        try:
            shared = await SharedMetadataStore.join(self.local, self.store, self.namespace)
        except NotFound as exc:
            raise StartupError("the bucket is not shared: its broker is started without --several-brokers") from exc
        state = ClusterState(shared)
        await state.load()
        check_last(state, broker_id)
        claim = Claim(
            epoch=max(state.next_number, shared.applied.epoch + 1),
            broker_id=broker_id,
            directory_id=directory_id,
            acknowledges_locally=False,
            is_released=True,
        )
        with suppress(PreconditionFailed):  # then it has ended, and the reply was lost, or it has not
            await shared.end(encode(claim))
        if not await self.finish():
            raise StartupError("the metadata was changed at this moment, as by a broker that is started: try again")

    async def finish(self) -> bool:
        """Finish an ended head; tell if a lone broker has the bucket. Raises DamagedObject, StoreError."""
        head = await find_head(self.store, self.namespace)
        if head is None or head.claim is None:
            return False
        claim = decode_claim(head_key(self.namespace), head.claim)
        current, etag = await read_claim(self.store, self.namespace)
        if not current.is_of_several:
            return True
        if current.epoch - SEVERAL > claim.epoch:
            return False  # several share it again, and their head has not replaced this one yet
        await self._write_checkpoints(claim.epoch)
        await delete_unneeded(self.store, self.namespace, (), before=claim.epoch, alone_until=head.epoch)
        manifests = await list_versions(self.store, self.namespace, "manifests")
        await guarded(self.store).delete_in_turn(
            [manifest.key] for manifest in manifests if manifest.epoch < claim.epoch
        )
        with suppress(PreconditionFailed):  # another process has finished
            await self.store.put_if_match(claim_key(self.namespace), [encode(claim)], etag)
        logger.info("broker %d has the bucket to itself again", claim.broker_id)
        return True

    async def _write_checkpoints(self, epoch: int) -> None:
        found = await find_checkpoints(self.store, self.namespace)
        if found.newest is not None and found.newest.position.epoch >= epoch:
            return
        await SharedMetadataStore.join(self.local, self.store, self.namespace, may_have_ended=True)
        position = WalPosition(epoch, 0)
        records = [entry.key for entry in await self.local.list(BROKERS) if parse_record_key(entry.key) is not None]
        await self.local.commit(
            Transaction(
                puts={POSITION_KEY: encode(position)},
                deletes=(*records, NEXT_NUMBER_KEY, CONTROLLER_KEY),
                delete_prefixes=(ASSIGNMENTS,),
                essential=True,
            )
        )
        versions = VersionWriter(store=self.store, namespace=self.namespace, kind="checkpoint", epoch=epoch)
        versions.inherit(found.keys)
        checkpointer = Checkpointer(versions=versions, local=self.local, position=lambda: position)
        with closing(checkpointer), suppress(PreconditionFailed):  # another process has written the same
            for _ in range(KEPT_COUNT):
                await checkpointer.write()


def check_last(state: ClusterState, broker_id: int) -> None:
    """Raise StartupError unless this broker is the only one, and the bucket has all its records."""
    others = sorted(other_id for other_id in state.brokers if other_id != broker_id)
    if others:
        raise StartupError(
            f"broker {others[0]} shares the bucket, too: drain it, stop it, and `kafscale brokers remove {others[0]}`"
        )
    record = state.brokers.get(broker_id)
    if record is None:
        raise StartupError(f"no broker {broker_id} shares the bucket: start it, with --several-brokers, and stop it")
    if record.state is not BrokerState.STOPPED:
        raise StartupError(f"broker {broker_id} runs, or has not stopped in order: stop it, or start it again before")
    led = [placement for row in state.placements.values() for placement in row]
    if not record.has_flushed or not all(placement.is_settled and placement.leader == broker_id for placement in led):
        raise StartupError(
            f"broker {broker_id} had not brought everything to the bucket when it stopped: start it again, and stop it "
            "with a longer --shutdown-timeout"
        )
