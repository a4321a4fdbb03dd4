"""Our messages against kafka-python's: the same values make the same bytes, and the same bytes the same values.

Its classes are made from Kafka's own message definitions, and its field names are ours, so messages are carried over
by name. Defaults and nullability, which no bytes show, are compared field by field. Where it gives a field another name
or another type, that is listed here; a field that is not found fails.
"""

import uuid
import warnings

import attrs
import pytest

from kafscale.wire.codec import decode, encode
from kafscale.wire.messages.records import FetchRequest
from kafscale.wire.schema import Array, Nullable, fields_of
from tests.wire.wire_messages import message_classes, message_versions, some_messages, versions_of

with warnings.catch_warnings():  # kafka-python reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer, sasl
    from kafka.protocol.schemas.fields.codecs import BitField

NOT_IN_KAFKA_PYTHON = {  # message and version; `test_against_java` has these
    (f"ConsumerGroup{name}", version)
    for name in ("HeartbeatRequest", "HeartbeatResponse", "DescribeRequest", "DescribeResponse")
    for version in (0, 1)
} | {(f"{name}{kind}", 0) for name in ("UnregisterBroker", "BrokerHeartbeat") for kind in ("Request", "Response")}

RENAMED = {  # (struct, our field): its field
    ("MetadataResponse", "cluster_authorized_operations"): "authorized_operations",
    ("MetadataResponseTopic", "topic_authorized_operations"): "authorized_operations",
    ("DescribeClusterResponse", "cluster_authorized_operations"): "authorized_operations",
}
BIT_SETS = {*RENAMED, ("DescribedGroup", "authorized_operations")}  # a set of bit numbers there, an int32 here
RENAMED |= {  # Kafka says in the names for which versions these are, which here `until` says
    ("AddPartitionsToTxnRequest", "transactional_id"): "v3_and_below_transactional_id",
    ("AddPartitionsToTxnRequest", "producer_id"): "v3_and_below_producer_id",
    ("AddPartitionsToTxnRequest", "producer_epoch"): "v3_and_below_producer_epoch",
    ("AddPartitionsToTxnRequest", "topics"): "v3_and_below_topics",
    ("AddPartitionsToTxnResponse", "results_by_topic"): "results_by_topic_v3_and_below",
}
NOT_ASKED_FOR = -(2**31)  # only bit 31, which is None there
DEFAULT_OF_ITS_OWN = {("CreatePartitionsTopic", "assignments")}  # kafka-python's null is not in Kafka's definition


def theirs(cls):
    """kafka-python's class for one of our message classes, or None."""
    return next(
        (
            found
            for package in (admin, consumer, metadata, producer, sasl)
            if (found := vars(package).get(cls.__name__))
        ),
        None,
    )


def knows(cls, version):
    their_class = theirs(cls)
    return their_class is not None and version <= their_class.max_version


each_known_class = pytest.mark.parametrize(
    "cls", [cls for cls in message_classes() if theirs(cls)], ids=lambda cls: cls.__name__
)
MESSAGES_COUNT = 10  # for each version of each class


def test_nothing_else_is_left_out():
    assert {
        (cls.__name__, version) for cls, version in message_versions() if not knows(cls, version)
    } == NOT_IN_KAFKA_PYTHON


def known_versions(cls):
    return [version for version in versions_of(cls) if knows(cls, version)]


@each_known_class
def test_same_bytes(cls):
    for version in known_versions(cls):
        for message in comparable_messages(cls, version):
            assert b"".join(encode(message, version)) == encode_theirs(message, version), version


@each_known_class
def test_same_values(cls):
    for version in known_versions(cls):
        for message in comparable_messages(cls, version):
            raw = encode_theirs(message, version)
            assert decode(cls, version, raw) == message, version
            their_message = theirs(cls).decode(raw, version=version, **without_version_prefix(cls))
            assert from_theirs(their_message, cls, version) == message, version


@each_known_class
def test_same_defaults_and_nullability(cls):
    compare_declarations(cls, theirs(cls), versions_of(cls))


def test_replica_only_fields_of_a_fetch_request_are_skipped():
    cls, version = FetchRequest, 18
    for message in comparable_messages(cls, version):
        their_message = to_theirs(message, theirs(cls), version)
        for topic in their_message.topics:
            for partition in topic.partitions:
                partition.replica_directory_id, partition.high_watermark = uuid.uuid4(), 5
        raw = bytes(their_message.encode(version=version))
        assert decode(cls, version, raw) == message
        assert (raw == encode_theirs(message, version)) == (not any(topic.partitions for topic in message.topics))


def compare_declarations(cls, their_class, versions):
    for field in fields_of(cls):
        if not any(field.is_in(version) for version in versions):
            continue  # kafka-python, as Kafka, has a class of its own where the same struct stands in other versions
        name, is_bit_set = their_field(cls, field.name)
        their_declaration = their_class.fields[name]
        where = f"{cls.__name__}.{field.name}"
        present = [version for version in versions if their_declaration.for_version_q(version)]
        nullable = any(their_declaration.nullable_for_version_q(version) for version in present)
        assert field.nullable == nullable, where
        if "default" in their_declaration._json and (cls.__name__, field.name) not in DEFAULT_OF_ITS_OWN:
            assert field.default == (NOT_ASKED_FOR if is_bit_set else their_declaration.default), where
        struct = field.type.of if isinstance(field.type, Array | Nullable) else field.type
        if isinstance(struct, type):
            compare_declarations(struct, their_declaration.data_class, present)


def comparable_messages(cls, version):
    return [comparable(message, version) for message in some_messages(cls, version, MESSAGES_COUNT)]


def comparable(message, version):
    """The message without what kafka-python rewrites instead of encoding or decoding it."""
    match type(message).__name__:
        case "MetadataRequest" if version == 0 and message.topics is None:
            return attrs.evolve(message, topics=[])  # null asks for all topics there, in every version
        case "ApiVersionsResponse":
            return attrs.evolve(message, error_code=0)  # an error makes it decode as version 0, whatever was asked for
    return message


def encode_theirs(message, version):
    their_message = to_theirs(message, theirs(type(message)), version)
    return bytes(their_message.encode(version=version, **without_version_prefix(type(message))))


def without_version_prefix(cls):
    return {} if hasattr(cls, "API_KEY") else {"header": False}


def to_theirs(message, their_class, version):
    values = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if not field.is_in(version) or (field.tag is not None and value == field.default):
            continue
        name, is_bit_set = their_field(type(message), field.name)
        values[name] = (
            bit_set(value) if is_bit_set else to_their_value(value, field.type, their_class.fields[name], version)
        )
    return their_class(**values)


def to_their_value(value, type_, their_field, version):
    match value, type_:
        case None, _:
            return None
        case _, Array(of=of):
            return [to_their_value(item, of, their_field, version) for item in value]
        case _, Nullable(of=of):
            return to_their_value(value, of, their_field, version)
        case _, type():
            return to_theirs(value, their_field.data_class, version)
        case _, "uuid":
            return uuid.UUID(bytes=value)
    return value


def from_theirs(their_message, cls, version):
    values = {}
    for field in fields_of(cls):
        if not field.is_in(version):
            continue
        name, is_bit_set = their_field(cls, field.name)
        value = getattr(their_message, name)
        if is_bit_set:
            values[field.name] = from_bit_set(value)
        elif value is not None or field.tag is None:  # a tagged field that was not sent is None there
            values[field.name] = from_their_value(value, field.type, version)
    return cls(**values)


def from_their_value(value, type_, version):
    match value, type_:
        case None, "uuid":
            return bytes(16)
        case None, _:
            return None
        case _, Array(of=of):
            return [from_their_value(item, of, version) for item in value]
        case _, Nullable(of=of):
            return from_theirs(value, of, version)
        case _, type():
            return from_theirs(value, type_, version)
        case _, "uuid":
            return value.bytes
    return value


def their_field(cls, name):
    return RENAMED.get((cls.__name__, name), name), (cls.__name__, name) in BIT_SETS


def bit_set(value):
    return None if value == NOT_ASKED_FOR else BitField.from_32_bit_field(value & 0xFFFFFFFF)


def from_bit_set(bits):
    if bits is None:
        return NOT_ASKED_FOR
    value = BitField.to_32_bit_field(bits)
    return value - 2**32 if value >= 2**31 else value
