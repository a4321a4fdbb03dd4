import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafscale.store.paths import (
    NumberedKey,
    SegmentKey,
    check_key,
    check_prefix,
    namespace_prefix,
    parse_numbered_key,
    parse_segment_key,
    parse_topic_id,
    partition_prefix,
    system_key,
    system_prefix,
    topic_id_text,
    topic_name_prefix,
    topic_prefix,
    version_1_topic_id,
)

TOPIC_ID = bytes(range(16))
KEY = SegmentKey(topic="orders", topic_id=TOPIC_ID, partition=7, base_offset=1234, generation=2)

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in (".", ".."))
segment_keys = st.builds(
    SegmentKey,
    namespace=st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}", fullmatch=True),
    topic=topics,
    topic_id=st.binary(min_size=16, max_size=16),
    partition=st.integers(0, 2**31 - 1),
    base_offset=st.integers(0, 2**63 - 1),
    generation=st.integers(0, 999_999_999),
    kind=st.sampled_from(["kfs", "index"]),
)


def test_a_segment_key_reads_as_documented():
    assert KEY.key == "default/orders/AAECAwQFBgcICQoLDA0ODw/7/segment-00000000000000001234-00002.kfs"
    assert KEY.of_kind("index").key == KEY.key.removesuffix("kfs") + "index"


@given(segment_keys)
def test_a_segment_key_survives_being_written_and_parsed(key):
    assert parse_segment_key(key.key) == key
    check_key(key.key)
    assert key.key.startswith(partition_prefix(key.topic, key.topic_id, key.partition, namespace=key.namespace))


@given(segment_keys, st.integers(0, 2**63 - 1), st.integers(0, 99_999), st.integers(0, 99_999))
def test_keys_sort_by_offset_and_then_by_generation(key, base_offset, own_generation, generation):
    key = attrs.evolve(key, generation=own_generation)
    other = attrs.evolve(key, base_offset=base_offset, generation=generation)
    by_offset = (key.base_offset, key.generation) < (other.base_offset, other.generation)
    assert (key.key.encode() < other.key.encode()) == by_offset


@pytest.mark.parametrize(
    "change",
    [
        ("default/", ""),
        ("default/", "_kafscale/"),
        ("default/", "prefix/default/"),
        ("orders", "."),
        ("orders", ".."),
        ("orders", "or/ders"),
        ("orders", "ördérs"),
        ("orders", "o" * 250),
        ("AAECAwQFBgcICQoLDA0ODw", "AAECAwQFBgcICQoLDA0ODx"),  # the same bytes, not the text we write
        ("AAECAwQFBgcICQoLDA0ODw", "AAECAwQFBgcICQoLDA0OD"),
        ("/7/", "/07/"),
        ("/7/", "/-7/"),
        ("/7/", "/2147483648/"),
        ("/7/", "/٧/"),
        ("00000000000000001234", "1234"),
        ("00000000000000001234", "99999999999999999999"),
        ("-00002", ""),  # KafScale's first format
        ("-00002", "-2"),
        ("-00002", "-000002"),  # the same number, not the text we write
        ("-00002", "-1000000000"),
        (".kfs", ".kfs.tmp"),
        (".kfs", ".KFS"),
        (".kfs", ".kfs\n"),
    ],
)
def test_a_foreign_key_is_none_of_ours(change):
    assert KEY.key != KEY.key.replace(*change)
    assert parse_segment_key(KEY.key.replace(*change)) is None


@given(st.text())
@example("default/orders")
def test_a_text_that_parses_as_a_segment_key_formats_to_the_same_text(text):
    parsed = parse_segment_key(text)
    assert parsed is None or parsed.key == text


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": ""},
        {"namespace": "_kafscale"},
        {"namespace": "a/b"},
        {"namespace": "default\n"},
        {"topic": ".."},
        {"topic": ""},
        {"topic": "a b"},
        {"topic": "orders\n"},
        {"topic_id": b"short"},
        {"partition": -1},
        {"partition": 2**31},
        {"base_offset": -1},
        {"base_offset": 2**63},
        {"generation": 1_000_000_000},
    ],
)
def test_a_key_that_could_not_be_parsed_is_not_made(change):
    with pytest.raises(ValueError, match=r"namespace|topic|partition|offset|generation"):
        _ = attrs.evolve(KEY, **change).key


def test_prefixes_end_where_a_segment_ends():
    assert namespace_prefix() == "default/"
    assert topic_prefix("orders", TOPIC_ID) == "default/orders/AAECAwQFBgcICQoLDA0ODw/"
    assert partition_prefix("orders", TOPIC_ID, 1, namespace="prod") == "prod/orders/AAECAwQFBgcICQoLDA0ODw/1/"


@given(st.binary(min_size=16, max_size=16))
def test_a_topic_id_survives_being_written_and_parsed(topic_id):
    assert parse_topic_id(topic_id_text(topic_id)) == topic_id


def test_the_brokers_own_keys_meet_no_topics():
    assert system_key("probe", "x1") == "_kafscale/default/probe/x1"
    assert system_prefix("checkpoint") == "_kafscale/default/checkpoint/"
    assert parse_segment_key(KEY.key.replace("default", system_prefix("a") + "default")) is None
    for names in ((), ("..",), ("a/../b",)):
        with pytest.raises(ValueError, match="key"):
            system_key(*names)


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "a/..", ".", "ü/"])
def test_a_prefix_can_end_anywhere(prefix):
    check_prefix(prefix)


@pytest.mark.parametrize("prefix", ["/", "/a", "../", "a/../b", "a//", "a/./", "\0"])
def test_a_prefix_of_no_key_is_refused(prefix):
    with pytest.raises(ValueError, match="key"):
        check_prefix(prefix)


def test_a_numbered_key_comes_back_and_sorts_by_epoch_and_number():
    keys = [NumberedKey(kind="wal", epoch=epoch, number=number) for epoch in (0, 9, 10) for number in (1, 2, 10**12)]
    assert [parse_numbered_key(key.key) for key in keys] == keys
    assert sorted(key.key for key in keys) == [key.key for key in keys]
    assert keys[0].key == "_kafscale/default/wal/0000000000/00000000000000000001.wal"


@pytest.mark.parametrize(
    "key",
    [
        "_kafscale/default/wal/0000000000/00000000000000000001.checkpoint",
        "_kafscale/default/wal/0000000000/1.wal",
        "_kafscale/default/wal/9999999999/00000000000000000001.wal",
        "default/wal/0000000000/00000000000000000001.wal",
        "_kafscale/default/probe/00000000000000000001.wal",
    ],
)
def test_a_text_that_is_not_a_numbered_key_parses_to_none(key):
    assert parse_numbered_key(key) is None


VERSION_1 = SegmentKey(topic="orders", topic_id=version_1_topic_id("orders"), partition=7, base_offset=1234, version=1)


def test_a_version_1_key_reads_as_documented():
    assert VERSION_1.key == "default/orders/7/segment-00000000000000001234.kfs"
    assert VERSION_1.of_kind("index").key == "default/orders/7/segment-00000000000000001234.index"


@given(topics, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_a_version_1_key_survives_being_written_and_parsed(topic, partition, base_offset):
    topic_id = version_1_topic_id(topic, namespace="n")
    key = SegmentKey(
        namespace="n", topic=topic, topic_id=topic_id, partition=partition, base_offset=base_offset, version=1
    )
    assert parse_segment_key(key.key) == key
    assert key.key.startswith(topic_name_prefix(topic, namespace="n"))
    assert not topic_id_text(topic_id).startswith("-")


@pytest.mark.parametrize("change", [{"generation": 1}, {"topic_id": TOPIC_ID}, {"partition": -1}, {"base_offset": -1}])
def test_a_version_1_key_that_could_not_be_parsed_is_not_made(change):
    with pytest.raises(ValueError, match=r"is between|has another id"):
        _ = attrs.evolve(VERSION_1, **change).key


def test_the_id_of_a_version_1_topic_never_changes():
    """It is in the keys of what was appended behind the old segments."""
    assert topic_id_text(version_1_topic_id("orders")) == "dTm3HluwVm2klqfUDDyjQA"
    assert version_1_topic_id("orders", namespace="other") != version_1_topic_id("orders")
