"""The bytes of a transaction, as the log in the bucket and checkpoints have them. Sans-IO; everything is big-endian.

    transaction = version u8 | puts: count u32, (key, value)... | deletes: count u32, key...
                  | deleted prefixes: count u32, key...
    key, value  = length u32 | bytes (a key is UTF-8)

What a transaction expects is not kept: it was checked before the transaction was written. Nor is whether it was
essential.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs

from kafscale.errors import DamagedObject, NewerVersion

VERSION = 1

_LENGTH = struct.Struct(">I")


@attrs.frozen(kw_only=True)
class PlannedFrom:
    """The basis of a planned transaction: a revision, and the keys that the plan has read.

    The plan is void if one of `keys`, or a key under one of `prefixes` (ending in `/`), has changed since that
    revision.
    """

    revision: int
    keys: Collection[str] = ()
    prefixes: Collection[str] = ()


@attrs.frozen
class Transaction:
    """Changes that are made together, if what they expect holds.

    Every key of `expect` must have the given revision (0: does not exist), and nothing of `planned_from` has changed.
    `essential` ones may use reserved room while the local disk is full: those of a start, and those that free space.
    """

    puts: Mapping[str, bytes] = attrs.field(factory=dict)
    deletes: Sequence[str] = ()
    delete_prefixes: Sequence[str] = ()
    expect: Mapping[str, int] = attrs.field(factory=dict)
    planned_from: PlannedFrom | None = attrs.field(default=None, kw_only=True)
    essential: bool = attrs.field(default=False, kw_only=True)

    @property
    def is_conditional(self) -> bool:
        return bool(self.expect) or self.planned_from is not None

    def unconditionally(self) -> Transaction:
        """Return the same without conditions, which the caller has checked."""
        return attrs.evolve(self, expect={}, planned_from=None)


def encode_transaction(transaction: Transaction) -> bytes:
    """Encode all but the conditions and `essential`."""
    pairs = [(key.encode(), value) for key, value in transaction.puts.items()]
    deletes, prefixes = ([key.encode() for key in keys] for keys in (transaction.deletes, transaction.delete_prefixes))
    return encode_pairs(pairs, deletes, prefixes)


def encode_pairs(
    pairs: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = (), delete_prefixes: Sequence[bytes] = ()
) -> bytes:
    parts = [bytes((VERSION,)), _LENGTH.pack(len(pairs))]
    for key, value in pairs:
        parts += (_LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value)
    return b"".join([*parts, _encode_keys(deletes), _encode_keys(delete_prefixes)])


def _encode_keys(keys: Sequence[bytes]) -> bytes:
    parts = [_LENGTH.pack(len(keys))]
    for key in keys:
        parts += (_LENGTH.pack(len(key)), key)
    return b"".join(parts)


def decode_transaction(data: memoryview) -> Transaction:
    """Decode a transaction. Raises DamagedObject."""
    return _decode_one(_Values(data, 0))


def decode_transactions(data: memoryview) -> Iterator[Transaction]:
    """Decode consecutive transactions. Raises DamagedObject."""
    values = _Values(data, 0)
    while values.position < len(data):
        yield _decode_one(values)


def _decode_one(values: _Values) -> Transaction:
    try:
        version = values.data[values.position]
        if version != VERSION:
            raise NewerVersion(
                f"a transaction of metadata has version {version}, and only {VERSION} is known: start a later version "
                "of KafScale"
            )
        values.position += 1
        puts = {values.text(): values.value() for _ in range(values.length())}
        deletes = [values.text() for _ in range(values.length())]
        delete_prefixes = [values.text() for _ in range(values.length())]
    except (struct.error, IndexError, UnicodeDecodeError) as exc:
        raise DamagedObject(f"a transaction of metadata of {len(values.data)} bytes can't be read: {exc}") from exc
    return Transaction(puts=puts, deletes=deletes, delete_prefixes=delete_prefixes)


class _Values:
    def __init__(self, data: memoryview, position: int) -> None:
        self.data = data
        self.position = position

    def length(self) -> int:
        (length,) = _LENGTH.unpack_from(self.data, self.position)
        self.position += _LENGTH.size
        return int(length)

    def value(self) -> bytes:
        length = self.length()
        start, self.position = self.position, self.position + length
        if self.position > len(self.data):
            raise IndexError(f"a value at {start} goes beyond the end")
        return bytes(self.data[start : self.position])

    def text(self) -> str:
        return self.value().decode()


def folded(transactions: Iterable[Transaction], max_count: int) -> Iterator[Transaction]:
    """Combine transactions into fewer ones of about `max_count` changes, with the same effect."""
    puts: dict[str, bytes] = {}
    deletes: dict[str, None] = {}
    prefixes: dict[str, None] = {}
    for transaction in transactions:
        for prefix in transaction.delete_prefixes:
            prefixes[prefix] = None
            for key in [key for key in puts if key.startswith(prefix)]:
                del puts[key]
        for key in transaction.deletes:
            deletes[key] = None
            puts.pop(key, None)
        puts.update(transaction.puts)
        if len(puts) + len(deletes) + len(prefixes) >= max_count:
            yield Transaction(puts=puts, deletes=tuple(deletes), delete_prefixes=tuple(prefixes))
            puts, deletes, prefixes = {}, {}, {}
    if puts or deletes or prefixes:
        yield Transaction(puts=puts, deletes=tuple(deletes), delete_prefixes=tuple(prefixes))
