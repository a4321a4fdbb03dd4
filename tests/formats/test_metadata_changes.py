from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.cluster.metadata.base import Transaction
from kafscale.errors import DamagedObject
from kafscale.formats.metadata_changes import decode_transaction, encode_transaction, folded

keys = st.text("ab/", max_size=3)
transactions = st.builds(
    Transaction,
    puts=st.dictionaries(keys, st.binary(max_size=3), max_size=4),
    deletes=st.lists(keys, max_size=3),
    delete_prefixes=st.lists(keys, max_size=2),
)


def applied(all_of_them: list[Transaction]) -> dict[str, bytes]:
    entries: dict[str, bytes] = {}
    for each in all_of_them:
        doomed = {key for key in entries if key in each.deletes or key.startswith(tuple(each.delete_prefixes))}
        entries = {key: value for key, value in entries.items() if key not in doomed} | dict(each.puts)
    return entries


@given(transactions)
def test_a_transaction_comes_back(transaction: Transaction) -> None:
    found = decode_transaction(memoryview(encode_transaction(transaction)))
    assert dict(found.puts) == dict(transaction.puts)
    assert list(found.deletes) == list(transaction.deletes)
    assert list(found.delete_prefixes) == list(transaction.delete_prefixes)


def test_any_key_and_value_comes_back() -> None:
    puts = {"groups/ä\U0001f600": bytes(range(256)), "": b""}
    assert decode_transaction(memoryview(encode_transaction(Transaction(puts=puts)))).puts == puts


def test_truncated_objects_and_other_versions_are_damage() -> None:
    data = encode_transaction(Transaction(puts={"a": b"1", "b": b"2"}, deletes=["c"], delete_prefixes=["d"]))
    for length in range(len(data)):
        with pytest.raises(DamagedObject):
            decode_transaction(memoryview(data[:length]))
    with pytest.raises(DamagedObject, match="version 9"):
        decode_transaction(memoryview(b"\x09" + data[1:]))


@given(st.lists(transactions, max_size=6), st.integers(1, 8))
def test_folded_transactions_have_the_same_effect(all_of_them: list[Transaction], max_count: int) -> None:
    before = Transaction(puts={"a": b"old", "b/a": b"old", "": b"old"})
    assert applied([before, *folded(all_of_them, max_count)]) == applied([before, *all_of_them])
