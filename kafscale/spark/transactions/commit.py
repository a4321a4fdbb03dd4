"""The protocol of a driver: decide once which transactions make up a batch, then commit them, whatever fails.

1. Take the lead: initialise the query's transactional id, which fences every other driver of the query, completes its
   decision, or aborts an undecided one.
2. Read the last decision. A later batch, or a later run, means that this driver was superseded. A decision of this
   batch counts, also of another driver: transactions that tasks have prepared since are aborted.
3. Otherwise check that all transactions of the tasks are still open, and decide: record them in a transaction of
   the lead. The broker commits it only if no other driver has taken the lead since, so a batch has one decision.
4. Commit the tasks' transactions, by their ids and epochs. Rows of one that the broker, or a task of another driver,
   has aborted since the decision are copied from the log, in the transaction that records the batch as whole.
5. Abort other open transactions of the query: of tasks that were killed, or ran twice.

Each step may be repeated, by this driver or the next one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import attrs

from kafscale.config import Address
from kafscale.errors import KafkaError
from kafscale.login.failures import check
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.producing.transaction import Prepared, RecordSpan, end, initialise
from kafscale.spark.transactions.decisions import Decision, DecisionJournal, Lead, UnfilteredPartition
from kafscale.wire import error_codes
from kafscale.wire.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

ONGOING: Final = "Ongoing"
_ENDED_OTHERWISE = frozenset(
    {
        error_codes.PRODUCER_FENCED,
        error_codes.INVALID_PRODUCER_EPOCH,
        error_codes.INVALID_PRODUCER_ID_MAPPING,
        error_codes.INVALID_TXN_STATE,
        error_codes.TRANSACTIONAL_ID_NOT_FOUND,
    }
)


@attrs.frozen(kw_only=True)
class Committer:
    """Commits and aborts the batches of one query, or of writes under one id; one call at a time."""

    cluster: Cluster
    transactional_id: str
    timeout_ms: int

    def commit(self, prepared: Sequence[Prepared], *, run: str, batch: int | None) -> None:
        """Commit a batch that all tasks have prepared, unless it was committed. `batch` is None outside of streams.

        Raises BrokerUnavailable, KafkaError: nothing is visible then, or the decision is left to be finished.
        """
        lead, journal, found = self._take_lead()
        number = batch if batch is not None else 0 if found is None else found.batch + 1
        _check_not_superseded(found, run, number)
        if found is not None:  # of this batch, or of another write outside of streams
            found = self._finish(lead, journal, found, run)
        if prepared and (found is None or found.batch < number):
            decided = self._decide(lead, journal, found, Decision(batch=number, run=run, unfinished=tuple(prepared)))
            self._finish(lead, journal, decided, run)
        self._abort_others(keep=())

    def finish_former(self, *, run: str) -> None:
        """Finish the decision of a driver that died. Raises BrokerUnavailable, KafkaError."""
        lead, journal, found = self._take_lead()
        if found is not None:
            self._finish(lead, journal, found, run)

    def abort(self, prepared: Sequence[Prepared], *, run: str, batch: int | None) -> None:
        """Abort a batch, unless it is decided: then the next run finishes it. Raises BrokerUnavailable, KafkaError."""
        _, _, found = self._take_lead()
        decided = () if found is None else found.unfinished
        for transaction in prepared:
            if transaction not in decided:
                self._end(transaction, committed=False)
        if found is None or found.run == run or batch is None:
            self._abort_others(keep={transaction.transactional_id for transaction in decided})

    def _take_lead(self) -> tuple[Lead, DecisionJournal, Decision | None]:
        journal = DecisionJournal.open(self.cluster, self.transactional_id)
        lead = Lead.take(self.cluster, self.transactional_id, self.timeout_ms)
        return lead, journal, journal.last()

    def _decide(self, lead: Lead, journal: DecisionJournal, found: Decision | None, wanted: Decision) -> Decision:
        self._check_open(wanted.unfinished)
        decision = attrs.evolve(wanted, former=() if found is None else found.followed_by(wanted.run))
        journal.write(lead, decision, _now_ms())
        lead.commit()
        return decision

    def _check_open(self, prepared: Iterable[Prepared]) -> None:
        for transaction in prepared:
            state = self.cluster.patiently(partial(self._describe, transaction.transactional_id))
            if state != (ONGOING, transaction.producer_id, transaction.producer_epoch):
                code = error_codes.INVALID_TXN_STATE
                raise KafkaError(
                    code,
                    f"the transaction '{transaction.transactional_id}' of a task was aborted before the batch was "
                    f"whole: by another query of the same transactionalId, or since it was open for longer than "
                    f"{self.timeout_ms} ms. If the latter, raise kafka.transaction.timeout.ms, or make batches smaller",
                )

    def _describe(self, transactional_id: str) -> tuple[str, int, int]:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        coordinator = self.cluster.coordinator(transactional_id)
        (state,) = self.cluster.ask(coordinator, request, DescribeTransactionsResponse).transaction_states
        check(state.error_code, f"transactional id '{transactional_id}'")
        return state.transaction_state, state.producer_id, state.producer_epoch

    def _finish(self, lead: Lead, journal: DecisionJournal, found: Decision, run: str) -> Decision:
        if not found.unfinished:
            return found
        aborted = [transaction for transaction in found.unfinished if not self._is_committed(transaction)]
        for transaction in aborted:
            for span in transaction.spans:
                self._copy(lead, transaction, span)
        whole = Decision(batch=found.batch, run=run, former=found.followed_by(run))
        journal.write(lead, whole, _now_ms())
        lead.commit()
        return whole

    def _is_committed(self, prepared: Prepared) -> bool:
        """Commit a task's transaction, and tell whether it is committed, now or before.

        If its id was used again since, or is forgotten, the markers in its partitions tell.
        """
        if self._end(prepared, committed=True):
            return True
        return any(self._is_visible(prepared.producer_id, span) for span in prepared.spans)

    def _end(self, prepared: Prepared, *, committed: bool) -> bool:
        producer = (prepared.transactional_id, prepared.producer_id, prepared.producer_epoch)
        try:
            end(self.cluster, *producer, committed=committed)
        except KafkaError as exc:
            if exc.code not in _ENDED_OTHERWISE:
                raise
            return False
        return True

    def _is_visible(self, producer_id: int, span: RecordSpan) -> bool:
        log = UnfilteredPartition(cluster=self.cluster, topic=span.topic, partition=span.partition)

        def ask() -> bool:
            outcome = log.outcome_of(producer_id, span.first)
            if outcome is None and log.start() <= span.last:
                code = error_codes.CONCURRENT_TRANSACTIONS
                raise KafkaError(code, f"no marker yet behind offset {span.last} of '{span.topic}' {span.partition}")
            return bool(outcome)

        return self.cluster.patiently(ask)

    def _copy(self, lead: Lead, prepared: Prepared, span: RecordSpan) -> None:
        """Write the records of an aborted transaction again, without those that were deleted since.

        Raises BrokerUnavailable, KafkaError if compaction has removed some, as it does with aborted ones.
        """
        log = UnfilteredPartition(cluster=self.cluster, topic=span.topic, partition=span.partition)
        count = 0
        for batch in log.batches(span.first, span.last + 1):
            header = batch.header
            of_task = header.producer_id == prepared.producer_id and header.producer_epoch == prepared.producer_epoch
            if of_task and not header.is_control:
                lead.copy(span.topic, span.partition, batch)
                count += header.record_count
        if count != span.count and log.start() <= span.first:
            code = error_codes.UNKNOWN_SERVER_ERROR
            raise KafkaError(
                code,
                f"'{span.topic}' {span.partition} has {count} of {span.count} records between offsets {span.first} and "
                f"{span.last} that were decided to be written, but whose transaction was aborted meanwhile, and that "
                "compaction has removed since: they are lost",
            )

    def _abort_others(self, keep: Iterable[str]) -> None:
        """Abort all open transactions of the query's tasks, except some, so that those tasks can't write any more."""
        pattern, kept = task_id_pattern(self.transactional_id), set(keep)
        for broker in self.cluster.patiently(lambda: list(self.cluster.brokers())):
            for state in self.cluster.patiently(partial(self._list_open, broker)).transaction_states:
                if pattern.fullmatch(state.transactional_id) and state.transactional_id not in kept:
                    initialise(self.cluster, state.transactional_id, self.timeout_ms)

    def _list_open(self, broker: Address) -> ListTransactionsResponse:
        request = ListTransactionsRequest(state_filters=[ONGOING])
        response = self.cluster.ask(broker, request, ListTransactionsResponse)
        check(response.error_code, f"transactions of {broker}")
        return response


def task_id(transactional_id: str, *, partition: int, attempt: int) -> str:
    """Return the id of one attempt of a task. Attempts have different ids, as the first finished one must stay.

    Each batch uses the same ids, so that a broker knows few, and a run aborts the transactions of runs before it.
    """
    return f"{transactional_id}.task-{partition}-{attempt}"


def task_id_pattern(transactional_id: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(transactional_id)}\.task-\d+-\d+")


def _check_not_superseded(found: Decision | None, run: str, batch: int) -> None:
    if found is not None and (found.batch > batch or run in found.former):
        code = error_codes.PRODUCER_FENCED
        raise KafkaError(
            code,
            f"batch {batch} is not written: batch {found.batch} was decided already, by run {found.run}. Another query "
            "writes from the same checkpoint or with the same transactionalId, or the checkpoint is an earlier one "
            "than was used before: to write again from there, give another transactionalId",
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
