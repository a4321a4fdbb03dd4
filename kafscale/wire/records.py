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
    parse_whole,
    set_attributes,
    set_base_offset,
    set_log_append_time,
    set_max_timestamp,
    whole_batches,
)
from kafscale.wire.batch_records import (
    MAX_DECOMPRESSED_BYTES,
    ProducerStamp,
    Record,
    build_batch,
    iterate_records,
    max_timestamp,
)
from kafscale.wire.batch_validation import check_of, first_batch, validate, validate_compressed, validate_header
from kafscale.wire.record_heads import record_heads

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
    "check_of",
    "compute_crc",
    "encode_batch",
    "first_batch",
    "iterate_records",
    "max_timestamp",
    "parse_header",
    "parse_whole",
    "record_heads",
    "set_attributes",
    "set_base_offset",
    "set_log_append_time",
    "set_max_timestamp",
    "validate",
    "validate_compressed",
    "validate_header",
    "whole_batches",
]
