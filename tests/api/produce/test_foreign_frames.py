"""Every form of every codec is answered as Apache Kafka answers it, but where some client could not read it."""

from __future__ import annotations

import pytest

from kafscale.errors import KafkaError
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import HEADER_BYTES
from tests.api.produce.foreign_frames import PLAIN, TAKEN, ForeignBatch, foreign_batches, lz4_frame
from tests.api.produce.test_produce import broker, produce

each_form = pytest.mark.parametrize("form", foreign_batches(), ids=lambda form: form.name)


@each_form
@pytest.mark.parametrize("patience", ["at once", "in a thread"])
async def test_each_batch_form_gets_the_error_code_of_the_table(
    form: ForeignBatch, patience: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real time: a large batch is unpacked in a thread."""
    constant = "AT_ONCE_MAX_RATIO" if patience == "at once" else "AT_ONCE_MAX_BYTES"
    monkeypatch.setattr(f"kafscale.api.handling.record_checks.{constant}", 1 << 20 if patience == "at once" else 1)
    async with broker() as it:
        answer = await it.send(produce(form.batch))
        assert error_codes.name(answer.error_code) == error_codes.name(form.foreign.expected)
        assert it.partition.next_offset == (0 if form.foreign.expected else 3)


@each_form
def test_frames_stored_by_earlier_versions_are_read(form: ForeignBatch) -> None:
    """They took several members, frames and streams, and linked blocks."""
    if form.foreign.kafka == TAKEN == form.foreign.expected or form.name in STORED_BY_EARLIER_VERSIONS:
        assert compression.decompress(form.codec, form.batch[HEADER_BYTES:], 1 << 20) == PLAIN


STORED_BY_EARLIER_VERSIONS = (
    "gzip, two members",
    "gzip, an empty member in front",
    "snappy, xerial of version 2",
    "snappy, xerial of version 0",
    "snappy, two xerial streams",
    "snappy, an empty xerial stream behind",
    "lz4, linked blocks",
    "lz4, one block that is marked as linked",
    "lz4, two frames",
    "lz4, an empty frame behind",
    "lz4, an empty frame in front",
    "lz4, a skippable frame behind",
    "lz4, a skippable frame in front",
)


def test_batch_forms_stored_by_earlier_versions_are_in_the_table() -> None:
    assert set(STORED_BY_EARLIER_VERSIONS) <= {form.name for form in foreign_batches()}


EMPTY_BLOCKS = 5_000
FULL_OF_EMPTY_BLOCKS = {
    compression.SNAPPY: compression.XERIAL_HEADER + b"\0\0\0\1\0" * EMPTY_BLOCKS,
    compression.LZ4: lz4_frame(b"")[:7] + b"\1\0\0\0\0" * EMPTY_BLOCKS + bytes(4),
}


@pytest.mark.parametrize("codec", FULL_OF_EMPTY_BLOCKS)
def test_a_frame_full_of_empty_blocks_is_refused_by_their_number(codec: int) -> None:
    """It unpacks to nothing, and each block takes as long as 128 bytes."""
    frame = FULL_OF_EMPTY_BLOCKS[codec]
    assert compression.decompress(codec, frame, 128 * EMPTY_BLOCKS, strict=True) == b""
    with pytest.raises(KafkaError) as caught:
        compression.decompress(codec, frame, 128 * EMPTY_BLOCKS - 256, strict=True)
    assert caught.value.code == error_codes.MESSAGE_TOO_LARGE
