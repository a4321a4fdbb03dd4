"""Copies that are too many or too few, by where the group goes on."""

from __future__ import annotations

from tests.devtools.history import Content
from tests.devtools.transactional.copier import wrong_copies
from tests.devtools.transactional.seen import CommittedRead

SOURCE = {0: {value: CommittedRead(offset, value, value, Content(1, 2)) for offset, value in enumerate("abc")}}


def found(*copies: str, offset: int = 2) -> int:
    return len(list(wrong_copies(SOURCE, iter(copies), {0: offset})))


def test_each_record_before_the_groups_offset_is_copied_once() -> None:
    assert found("a>copier.0-1", "b>copier.1-1") == 0
    assert found("a>copier.0-1") == 1
    assert found("a>copier.0-1", "b>copier.0-1", "b>copier.1-1") == 1
    assert found("a>copier.0-1", "b>copier.0-1", "c>copier.0-2") == 1
    assert found(offset=0) == 0
