"""What the bucket has, as statements see it, and what one reference to a topic reads; nothing here is of an engine."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import attrs

from kafscale.errors import QueryError
from kafscale.spark.bucket.catalog import PartitionLog
from kafscale.spark.bucket.subscription import some_of
from kafscale.spark.source.options import Given, ReadOptions
from kafscale.spark.source.planning import Planner
from kafscale.spark.sql.clauses import Bound
from kafscale.spark.sql.tails import tail_offsets
from kafscale.store.paths import topic_name_prefix

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")  # Kafka's rule


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BucketTopics:
    """The topics of a bucket.

    options: of `format("kafscale")`, without those that say what to read. `clock` is in seconds.
    """

    options: Mapping[str, str]
    max_scan_bytes: int | None = None
    clock: Callable[[], float] = time.time

    def names(self) -> Sequence[str]:
        """Return the names of all topics, in order. Raises ConfigError, StoreError."""
        with closing(self.planner()) as planner:
            return planner.catalog.topics()

    def has(self, name: str) -> bool:
        """Tell whether anything of it is in the bucket, or it is known to be empty. Raises ConfigError, StoreError."""
        with closing(self.planner()) as planner:
            if planner.catalog.brokers is not None:
                return name in planner.catalog.topics()
            prefix = topic_name_prefix(name, namespace=planner.options.namespace)
            is_listed = next(iter(planner.catalog.bucket.list(prefix)), None) is not None
            return is_listed or name in planner.catalog.metadata.topics

    def logs(self, topic: str) -> Mapping[int, PartitionLog]:
        """Its partitions, as the bucket has them now. Raises ConfigError, StoreError."""
        with closing(self.planner()) as planner:
            return planner.catalog.partitions(topic)

    def reading(
        self, topic: str, bound: Bound, *, partition: int | None = None, options: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the options that one reference to a topic is read with. Raises ConfigError, QueryError, StoreError.

        partition: the tail of this one alone. options: for this reference alone.
        """
        what = {"subscribe": topic} if bound.tail_count is None else self._tail(topic, bound.tail_count, partition)
        return {**self.options, **self._limit(bound), **what, **(options or {})}

    def no_such(self, name: str) -> QueryError:
        """Return an error to raise, which says which topics there are."""
        told = some_of(self.names(), near_to=name, label="topics")
        return QueryError(
            f"there is no topic, table or view '{name}' ({told}). Check the name, --store and --namespace; records "
            "that were just produced come into the bucket by `kafscale flush`, and a new topic within 10 s"
        )

    def planner(self) -> Planner:
        """Open a planner, which the caller closes. Raises ConfigError."""
        return Planner.of(ReadOptions.of(Given({**self.options, "subscribePattern": ".*"})))

    def _limit(self, bound: Bound) -> dict[str, str]:
        if self.max_scan_bytes is None or bound.is_full:
            return {}
        return {"maxScanBytes": str(self.max_scan_bytes)}

    def _tail(self, topic: str, count: int, partition: int | None) -> dict[str, str]:
        with closing(self.planner()) as planner:
            starts = tail_offsets(planner.catalog, topic, count, partition)
        if not starts:
            raise QueryError(f"topic '{topic}' has no partition {partition} in the bucket")
        return {
            "assign": json.dumps({topic: list(starts)}),
            "startingOffsets": json.dumps({topic: {str(index): start for index, start in starts.items()}}),
        }
