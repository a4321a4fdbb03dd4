"""What is looked at of a table's snapshots, which are given as Iceberg's Java objects would be."""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs

from kafscale.spark.pipeline.snapshots import CommitsAhead, committed_batches
from kafscale.spark.pipeline.table_format import ancestry


@attrs.define(kw_only=True)
class Snapshot:
    """A snapshot of a batch whose number is its id; each look at it is counted."""

    number: int
    mapping: str = "mine"
    looks: int = 0

    def summary(self) -> dict[str, str]:
        self.looks += 1
        return {
            "kafscale.mapping": self.mapping,
            "kafscale.query-id": "query",
            "kafscale.batch-id": str(self.number),
            "kafscale.offsets": json.dumps({"t": {"0": self.number}}),
            **dict.fromkeys(("kafscale.topic-ids", "kafscale.starts", "kafscale.began", "kafscale.crcs"), "{}"),
        }

    def snapshotId(self) -> int:
        return self.number

    def parentId(self) -> int | None:
        return self.number - 1 if self.number > 1 else None

    def timestampMillis(self) -> int:
        return self.number


@attrs.define
class Table:
    """Snapshots, oldest first, which begin with 1."""

    snapshots: list[Snapshot]

    def currentSnapshot(self) -> Snapshot | None:
        return self.snapshots[-1] if self.snapshots else None

    def snapshot(self, number: int) -> Snapshot:
        return self.snapshots[number - 1]


def numbers(found: Sequence[object]) -> list[int]:
    return [each.batch_id for each in found]  # type: ignore[attr-defined]


def test_the_search_for_dead_letters_walked_all_snapshots_for_each_batch():
    table = Table([Snapshot(number=number) for number in range(1, 201)])
    letters = CommitsAhead(mapping="mine")
    (committed,) = [each for each in committed_batches(ancestry(table)) if each.batch_id == 198]
    assert numbers(letters.look(ancestry(table), committed)) == [200, 199]
    for each in table.snapshots:
        each.looks = 0
    table.snapshots += [Snapshot(number=201, mapping="another's"), Snapshot(number=202)]
    assert numbers(letters.look(ancestry(table), committed)) == [202, 200, 199]
    assert sum(each.looks for each in table.snapshots) == 2
    assert numbers(letters.look(ancestry(table), committed)) == [202, 200, 199]
    assert sum(each.looks for each in table.snapshots) == 2


def test_commits_seen_before_a_table_rollback_do_not_count():
    letters = CommitsAhead(mapping="mine")
    assert numbers(letters.look(ancestry(Table([Snapshot(number=1), Snapshot(number=2)])), None)) == [2, 1]
    assert numbers(letters.look(ancestry(Table([Snapshot(number=1)])), None)) == [1]
    assert numbers(letters.look(ancestry(Table([])), None)) == []
