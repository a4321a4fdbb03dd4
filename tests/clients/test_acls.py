"""Confluent's admin client adds, shows and removes access control lists, and they act on its producers."""

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kafscale.testing.background_broker import running_broker

EVERYTHING = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


def allow(operation, resource_type, name, pattern=ResourcePatternType.LITERAL, permission=AclPermissionType.ALLOW):
    return AclBinding(resource_type, name, pattern, "User:ANONYMOUS", "*", operation, permission)


def produce(bootstrap, topic):
    """The error code of a record that is sent, or None."""
    errors = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 30_000})
    producer.produce(topic, b"v", callback=lambda error, _: errors.append(error))
    producer.flush(60)
    return errors[0] and errors[0].code()


def test_lists_by_confluents_admin_client():
    with running_broker(authorizer="acl", allow_everyone_if_no_acl_found="true") as broker:
        broker.create_topic("orders")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        write = allow(AclOperation.WRITE, ResourceType.TOPIC, "orders")
        deny = allow(
            AclOperation.WRITE, ResourceType.TOPIC, "ord", ResourcePatternType.PREFIXED, AclPermissionType.DENY
        )
        assert produce(broker.bootstrap, "orders") is None  # as no list is about it
        for future in admin.create_acls([write]).values():
            future.result()
        assert produce(broker.bootstrap, "orders") is None
        for future in admin.create_acls([deny]).values():
            future.result()
        assert set(admin.describe_acls(EVERYTHING).result()) == {write, deny}
        assert produce(broker.bootstrap, "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        only_deny = AclBindingFilter(
            ResourceType.TOPIC,
            "orders",
            ResourcePatternType.MATCH,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.DENY,
        )
        (deleted,) = admin.delete_acls([only_deny]).values()
        assert list(deleted.result()) == [deny]
        assert produce(broker.bootstrap, "orders") is None
        wrong = allow(AclOperation.ALTER, ResourceType.BROKER, "not-the-cluster")
        (refused,) = admin.create_acls([wrong]).values()
        with pytest.raises(KafkaException) as told:
            refused.result()
        assert told.value.args[0].code() == KafkaError.INVALID_REQUEST
