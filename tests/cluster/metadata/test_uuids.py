"""Made-up ids."""

from __future__ import annotations

from kafscale.cluster.metadata.converter import random_uuid, uuid_text


def test_random_uuids_differ_and_never_look_like_command_line_flags() -> None:
    values = {random_uuid() for _ in range(500)}
    assert len(values) == 500
    assert not any(uuid_text(value).startswith("-") for value in values)
