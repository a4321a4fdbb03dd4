"""Whole checkpoints of the metadata; the product encodes them in pieces."""

from collections.abc import Iterable, Sequence

from kafscale.formats.metadata_changes import Transaction, encode_transaction
from kafscale.formats.metadata_checkpoint import CheckpointBody, encode_header
from kafscale.formats.wal_objects import WalPosition


def encode_checkpoint(
    position: WalPosition, transactions: Iterable[Transaction], base: int | None = None
) -> Sequence[bytes]:
    body = CheckpointBody()
    for transaction in transactions:
        body.add(encode_transaction(transaction))
    parts = body.finish()
    return [encode_header(position, parts, base), *parts]
