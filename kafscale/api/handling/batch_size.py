"""The bound on the changes of one request to the metadata, which are committed and applied as one."""

from __future__ import annotations

from typing import Final

from kafscale.errors import KafkaError
from kafscale.wire.error_codes import POLICY_VIOLATION

CHANGES_MAX_COUNT: Final = 10_000  # as of Kafka's controller (MAX_RECORDS_PER_USER_OP)


def check_batch_size(change_count: int) -> None:
    """Raises KafkaError POLICY_VIOLATION, in Kafka's words, if a request asks for more than CHANGES_MAX_COUNT."""
    if change_count > CHANGES_MAX_COUNT:
        raise KafkaError(POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
