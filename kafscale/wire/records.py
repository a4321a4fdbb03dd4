"""Record batches of format v2, in one import: headers, validation, and records as objects.

`view` is a memoryview of one whole batch, header first, unless a function says otherwise. Errors are KafkaErrors, since
they become the reply for one partition.
"""

from __future__ import annotations

from kafscale.wire.batch_header import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAX_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    batches,
    compute_crc,
    encode_batch,
    parse_header,
    set_base_offset,
    set_log_append_time,
)
from kafscale.wire.batch_records import (
    MAX_DECOMPRESSED_BYTES,
    ProducerStamp,
    Record,
    build_batch,
    iterate_records,
    max_timestamp,
)
from kafscale.wire.batch_validation import keyless_records, validate, validate_compressed

__all__ = [
    "CODEC_MASK",
    "CONTROL",
    "DELETE_HORIZON",
    "HEADER_BYTES",
    "LENGTH_END",
    "LOG_APPEND_TIME",
    "MAX_DECOMPRESSED_BYTES",
    "MAX_SEQUENCE",
    "TRANSACTIONAL",
    "BatchHeader",
    "ProducerStamp",
    "Record",
    "batches",
    "build_batch",
    "compute_crc",
    "encode_batch",
    "iterate_records",
    "keyless_records",
    "max_timestamp",
    "parse_header",
    "set_base_offset",
    "set_log_append_time",
    "validate",
    "validate_compressed",
]
