"""Produces in a connection's queue, of either way, and the errors of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from kafscale.errors import InvalidRecord, KafkaError, StorageFailed
from kafscale.log.wal.journal import Round
from kafscale.wire import error_codes
from kafscale.wire.messages.records import BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceResponse


class Pending(Protocol):
    """One or more Produces that are in the log, or were refused: what is left is to `wait`, and then to reply."""

    @property
    def ready(self) -> bool:
        """Tell whether `wait` would return at once."""

    async def wait(self) -> None:
        """Wait until the replies are true, and may be sent."""

    @property
    def responses(self) -> Sequence[ProduceResponse]:
        """Return the responses that may hold errors, which are counted."""

    @property
    def unencoded(self) -> ProduceResponse | None:
        """The response that is still to be encoded and sent, if there is one."""

    @property
    def replies(self) -> Sequence[bytes]:
        """Whole replies that are to be sent as they are."""


def refuse(response: PartitionProduceResponse, exc: KafkaError) -> None:
    """Answer a batch with an error."""
    response.error_code = exc.code
    response.error_message = exc.message
    response.base_offset = -1
    if isinstance(exc, InvalidRecord):
        response.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
            for index, reason in exc.record_errors
        ]


async def refusal_of(round: Round) -> KafkaError | None:
    """Wait for a round; None if it became durable, and otherwise the error that its batches are answered with.

    Both errors are retriable. After REQUEST_TIMED_OUT it may yet become durable: a producer without idempotence may
    then repeat it.
    """
    if round.done:
        return None
    try:
        await round.wait()
    except StorageFailed as exc:
        return KafkaError(error_codes.KAFKA_STORAGE_ERROR, str(exc))
    except trio.TooSlowError as exc:
        return KafkaError(error_codes.REQUEST_TIMED_OUT, str(exc))
    return None
