"""Checks the objects that a broker keeps for itself: the claim, and checkpoints of metadata and manifests.

The write-ahead log is checked by `kafscale.log.check.wal_check`. Call `read` before the segments are listed and
`check_claim` after, so that a broker that starts meanwhile is not taken for damage.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing, suppress

import attrs

from kafscale.cluster.membership.start.claim import Claim, claim_key, read_claim
from kafscale.cluster.metadata.converter import encode
from kafscale.errors import DamagedObject, NotFound, PreconditionFailed
from kafscale.formats.manifest_checkpoint import ManifestCheckpoint, decode_manifests
from kafscale.formats.metadata_checkpoint import Checkpoint, decode_checkpoint, has_base
from kafscale.formats.metadata_head import decode_head, head_key
from kafscale.formats.wal_objects import START, WalPosition
from kafscale.log.repair.verify_segment import Finding, FindingKind
from kafscale.store.base import ObjectStore
from kafscale.store.paths import NumberedKey, parse_numbered_key, system_namespace_prefix


@attrs.define(eq=False, kw_only=True, repr=False)
class OwnObjects:
    """One check: `read`, then `check_claim`, then perhaps `repair`.

    `manifests` is the newest intact checkpoint of the segments; `has_head`: brokers share the bucket.
    """

    store: ObjectStore
    namespace: str
    findings: list[Finding] = attrs.field(factory=list, init=False)
    checkpoint_count: int = attrs.field(default=0, init=False)
    manifests: ManifestCheckpoint = attrs.field(factory=dict, init=False)
    _keys: list[NumberedKey] = attrs.field(factory=list, init=False)
    has_head: bool = attrs.field(default=False, init=False)
    _epoch: int = attrs.field(default=-1, init=False)  # the greatest in the bucket

    async def read(self) -> WalPosition:
        """Check every checkpoint. Return the position in the log of the newest. Raises StoreError."""
        async with aclosing(self.store.list(system_namespace_prefix(self.namespace))) as pages:
            async for page in pages:
                for info in page:
                    self._sort(info.key)
        await self._check_head()
        checkpoints: dict[NumberedKey, Checkpoint] = {}
        for key in self._keys:
            if key.kind == "checkpoint":
                found = await self._check_checkpoint(key)
                if found is not None:
                    checkpoints[key] = found
            elif key.kind == "manifests":
                await self._check_manifests(key)
        self._check_bases(checkpoints)
        return max((checkpoint.position for checkpoint in checkpoints.values()), default=START)

    def _check_bases(self, checkpoints: Mapping[NumberedKey, Checkpoint]) -> None:
        """A checkpoint of changes needs its full one, unless a newer full one has taken its place."""
        full = [key for key, checkpoint in checkpoints.items() if checkpoint.base is None]
        newest = max(((key.epoch, key.number) for key in full), default=(-1, -1))
        for key, checkpoint in checkpoints.items():
            if checkpoint.base is not None and (key.epoch, key.number) > newest and not has_base(key, checkpoint, full):
                self._note_damage(key, DamagedObject("there is no full checkpoint that its changes are of"))

    def _sort(self, name: str) -> None:
        key = parse_numbered_key(name)
        if key is not None:
            self._keys.append(key)
            self._epoch = max(self._epoch, key.epoch)
        elif name == head_key(self.namespace):
            self.has_head = True
        elif name != claim_key(self.namespace):
            message = "is none of the broker's own objects, or what a start has left of its probes"
            self.findings.append(Finding(name=name, kind=FindingKind.UNKNOWN_OBJECT, message=message, damage=False))

    async def _check_head(self) -> None:
        key = head_key(self.namespace)
        try:
            if self.has_head:
                head = decode_head(key, (await self.store.get(key)).data)
                self.has_head = head.claim is None
        except DamagedObject as exc:
            message = f"{str(exc).removeprefix(f'{key}: ')}; no broker can start, or change the metadata, without it"
            self.findings.append(Finding(name=key, kind=FindingKind.CHECKPOINT, message=message))

    async def _check_checkpoint(self, key: NumberedKey) -> Checkpoint | None:
        try:
            found = decode_checkpoint(key.key, (await self.store.get(key.key)).data)
            self.checkpoint_count += 1
            if found.position.epoch > key.epoch:
                raise DamagedObject(f"{key.key}: says that it holds up to epoch {found.position.epoch}")
        except NotFound:
            return None  # a newer one has taken its place
        except DamagedObject as exc:
            self._note_damage(key, exc)
            return None
        return found

    async def _check_manifests(self, key: NumberedKey) -> None:
        with suppress(NotFound):
            try:
                self.manifests = decode_manifests(key.key, (await self.store.get(key.key)).data)
            except DamagedObject as exc:
                self._note_damage(key, exc)

    def _note_damage(self, key: NumberedKey, damage: DamagedObject) -> None:
        message = f"{str(damage).removeprefix(f'{key.key}: ')}; the next start or checkpoint does without it"
        self.findings.append(Finding(name=key.key, kind=FindingKind.CHECKPOINT, message=message))

    # ---- the claim ----------------------------------------------------------------------------------------------

    async def check_claim(self, leader_epoch: int) -> None:
        """Compare the claim with the epochs of objects; `leader_epoch` is that of segments. Raises StoreError."""
        self._epoch = max(self._epoch, leader_epoch)
        try:
            found = await self._read_claim()
        except DamagedObject as exc:
            self._note_claim(str(exc).removeprefix(f"{claim_key(self.namespace)}: "), damage=True)
            return
        if found is None and self._keys:
            self._note_claim("is missing; the next start makes a new one", damage=False)
        elif found is not None and found.epoch < self._epoch:
            self._note_claim(f"says epoch {found.epoch}, but there are objects of epoch {self._epoch}", damage=True)

    async def has_all_metadata(self) -> bool:
        """Tell whether the bucket has every acknowledged change of metadata, as in `s3-wal` and `segment`."""
        try:
            found = await self._read_claim()
        except DamagedObject:
            return False
        return found is not None and not found.acknowledges_locally and not found.unsettled

    async def _read_claim(self) -> Claim | None:
        try:
            claim, _ = await read_claim(self.store, self.namespace)
        except NotFound:
            return None
        return claim

    def _note_claim(self, message: str, *, damage: bool) -> None:
        name = claim_key(self.namespace)
        self.findings.append(
            Finding(
                name=name,
                kind=FindingKind.CLAIM,
                message=message,
                damage=damage,
                can_repair=damage and self._epoch >= 0 and not self.has_head,
            )
        )

    async def repair(self) -> None:
        """Write a damaged claim anew: of the last epoch, and so that a start waits for its owner. Raises StoreError."""
        for finding in self.findings:
            if finding.kind is FindingKind.CLAIM and finding.can_repair:
                finding.repaired = await self._rewrite_claim(finding.name)

    async def _rewrite_claim(self, key: str) -> bool:
        claim = Claim(epoch=self._epoch, broker_id=0, directory_id="", acknowledges_locally=True)
        try:
            await self.store.put_if_match(key, [encode(claim)], (await self.store.head(key)).etag)
        except (NotFound, PreconditionFailed):
            return False  # a broker starts at this moment
        return True
