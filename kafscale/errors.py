"""Every exception that KafScale raises on purpose.

Kafka error codes are integers from `kafscale.wire.error_codes`; this module imports nothing.
"""

from __future__ import annotations

from typing import Self

MESSAGE_MAX_LENGTH = 1000  # characters; a string of the protocol has at most 32,767 bytes


class KafScaleError(Exception):
    pass


class ConfigError(KafScaleError):
    """A setting is wrong (exit 2). The message names the option, its value and the allowed ones."""


class StartupError(KafScaleError):
    """The broker can't start (exit 1). The message says which resource and what to do about it."""


class ProtocolError(KafScaleError):
    """The peer broke the protocol; its connection ends, and no other one."""


class DecodeError(ProtocolError):
    """The peer sent bytes that are not a valid message."""


class FrameTooLarge(ProtocolError):
    """A frame's length prefix is negative or past the limit; `prefix` may tell the protocol that is spoken there."""

    def __init__(self, message: str, prefix: bytes = b"") -> None:
        super().__init__(message)
        self.prefix = prefix


class KafkaError(KafScaleError):
    """An error with a code of `error_codes`. `message` goes to the client where a field is for it, cut off if long."""

    def __init__(self, code: int, message: str | None = None) -> None:
        message = message and message[:MESSAGE_MAX_LENGTH]
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message or f"Kafka error {self.code}"

    def kept(self) -> Self:
        """Return the error without its traceback, to be kept as the outcome of a part of a request.

        A traceback's frames hold the outcomes: the request would be part of a cycle, which the collector frees at once.
        For 100,000 entries that stops everything for 0.7 s.
        """
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class CorruptBatch(KafkaError):
    """CORRUPT_MESSAGE (2): a record batch with a wrong CRC, magic or length. Clients send it again."""

    def __init__(self, message: str) -> None:
        super().__init__(2, message)


class UnreadableBatch(CorruptBatch):
    """UNKNOWN_SERVER_ERROR (-1), as Kafka answers: a record batch that can't be decompressed. Clients give it up."""

    def __init__(self, message: str) -> None:
        KafkaError.__init__(self, -1, message)


class WrongOffsetDelta(CorruptBatch):
    """UNKNOWN_SERVER_ERROR (-1), as Kafka answers in a compressed batch: a record's offset delta is not its index."""

    def __init__(self, message: str) -> None:
        KafkaError.__init__(self, -1, message)


class InvalidRecord(KafkaError):
    """INVALID_RECORD (87): a well-formed batch that must not be stored. `record_errors` has single records' faults."""

    def __init__(self, message: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(87, message)
        self.record_errors = record_errors


class StorageFull(KafkaError):
    """KAFKA_STORAGE_ERROR (56), which clients retry: the local disk has no room. Nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(56, message)


class StoreError(KafScaleError):
    """The object store refused or failed."""


class NotFound(StoreError):
    """No object has this key, or the bucket does not exist."""


class PreconditionFailed(StoreError):
    """A conditional write lost (412): the key exists (If-None-Match) or has another ETag (If-Match)."""


class PlanOutdated(PreconditionFailed):
    """The metadata that a transaction was planned from has changed: plan it anew from `revision` or a later one."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class Conflict(StoreError):
    """Two conditional writes of one key met; nothing is decided yet, try again (409)."""


class AccessDenied(StoreError):
    """Credentials are missing, refused or expired (401, 403)."""


class NoCredentials(AccessDenied):
    """No credentials are configured, or what is configured can't be used. The store was not asked."""


class NoPermission(AccessDenied):
    """The store is a directory that the user of this process may not read or write."""


class EncryptionRefused(AccessDenied):
    """The store can't encrypt or decrypt: no key service, no such key, or no right to use it. Says what to do."""


class WrongRegion(StoreError):
    """The bucket is in another region than the one asked; `region` is the right one, if the store said so."""

    def __init__(self, message: str, region: str | None = None) -> None:
        super().__init__(message)
        self.region = region


class RangeNotSatisfiable(StoreError):
    """The range starts past the end of the object (416)."""


class SlowDown(StoreError):
    """The store asks for fewer requests (429, 503); it has not done this one."""


class StoreUnavailable(StoreError):
    """No answer, half of one, or 5xx: whether a write took effect is unknown."""


class StoreFull(StoreUnavailable):
    """The store is a directory, and its disk has no room."""


class ClockRefused(StoreUnavailable):
    """The store's clock differs too much from this machine's, which signed the request; nothing took effect."""


class BrokerUnavailable(KafScaleError):
    """A client got no connection to a broker, lost it, or had no answer in time. The message names the broker."""


class RegistryError(KafScaleError):
    """The schema registry refused or gave no answer. The message names it and says what to do."""


class UnknownSchema(RegistryError):
    """The schema registry answers that it has no such id, subject or version."""


class QueryError(KafScaleError):
    """A statement of SQL is wrong, or Spark failed to execute it. The message says which, and what to do."""


class DamagedObject(KafScaleError):
    """A segment, index or WAL file is not what its checksums say. The message names it and the position."""


class DamagedBatch(DamagedObject):
    """A record batch of a segment is damaged. It may hold the offsets from `first_offset` to `last_offset`."""

    def __init__(self, name: str, first_offset: int, last_offset: int) -> None:
        super().__init__(f"{name}: the record batch with offsets {first_offset} to {last_offset} is damaged")
        self.first_offset = first_offset
        self.last_offset = last_offset


class NewerVersion(DamagedObject):
    """An object is intact, but of a version that this KafScale can't read."""


class Fenced(KafScaleError):
    """This broker must stop acknowledging, as another one has taken over what it owned."""


class DeclaredDead(Fenced):
    """The other brokers of the bucket could not hear of this one, and lead what it led. It may start anew."""


class StorageFailed(KafScaleError):
    """The local disk failed. What was not acknowledged is in doubt, so the broker must stop."""
