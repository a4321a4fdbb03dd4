"""Settings of transactions."""

from __future__ import annotations

import attrs

from kafscale.config import Settings

# Of a transactional id, which is kept in memory, as of a group's. Kafka has no limit but that of a string, 32 KiB.
TRANSACTIONAL_ID_MAX_COUNT = 1024
# What one call of `due` decides: a group of this many entries is written at once, and others run in between.
DUE_MAX_COUNT = 500


@attrs.frozen(kw_only=True)
class TransactionSettings:
    """The defaults are Kafka's (4.1), where no comment says otherwise."""

    transaction_max_timeout_ms: int = 15 * 60_000  # transaction.max.timeout.ms
    transactional_id_expiration_ms: int = 7 * 24 * 3600_000  # transactional.id.expiration.ms
    max_transactional_id_count: int = 100_000  # of all partitions led here; no limit in Kafka
    max_partition_count: int = 10_000  # of one transaction, whose record names them all; no limit in Kafka

    @classmethod
    def of(cls, settings: Settings) -> TransactionSettings:
        return cls(
            transaction_max_timeout_ms=settings.transaction_max_timeout_ms,
            transactional_id_expiration_ms=settings.transactional_id_expiration_ms,
            max_transactional_id_count=settings.limits.max_transactional_ids_count,
            max_partition_count=settings.limits.max_transaction_partitions_count,
        )
