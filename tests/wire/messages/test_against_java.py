"""Messages that kafka-python does not have, against bytes that Kafka's own classes wrote.

The bytes are those of `org.apache.kafka.common.message.*Data` in kafka-clients 4.1.1: each object was read by its
JsonConverter from JSON that says the same as the message here, and written by `MessageUtil.toByteBufferAccessor`.
"""

import pytest

from kafscale.wire.codec import decode, encode
from kafscale.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

TOPIC_ID = bytes(range(16))

WRITTEN_BY_JAVA = [
    (
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m-1",
            member_epoch=0,
            rack_id="r1",
            rebalance_timeout_ms=300_000,
            subscribed_topic_names=["a", "b"],
            server_assignor="uniform",
            topic_partitions=[],
        ),
        0,
        "0267046d2d310000000000037231000493e0030261026208756e69666f726d0100",
    ),
    (
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m-1",
            member_epoch=7,
            instance_id="i",
            subscribed_topic_regex="a.*",
            topic_partitions=[HeartbeatTopicPartitions(topic_id=TOPIC_ID, partitions=[0, 2])],
        ),
        1,
        "0267046d2d3100000007026900ffffffff0004612e2a0002000102030405060708090a0b0c0d0e0f0300000000000000020000",
    ),
    (
        ConsumerGroupHeartbeatResponse(
            throttle_time_ms=5,
            member_id="m-1",
            member_epoch=8,
            heartbeat_interval_ms=5000,
            assignment=HeartbeatAssignment(
                topic_partitions=[HeartbeatTopicPartitions(topic_id=TOPIC_ID, partitions=[1, 3])]
            ),
        ),
        0,
        "00000005000000046d2d3100000008000013880102000102030405060708090a0b0c0d0e0f030000000100000003000000",
    ),
    (
        ConsumerGroupHeartbeatResponse(error_code=110, error_message="fenced"),
        1,
        "00000000006e0766656e636564000000000000000000ff00",
    ),
    (
        ConsumerGroupDescribeRequest(group_ids=["g", "h"], include_authorized_operations=True),
        0,
        "03026702680100",
    ),
    (ConsumerGroupDescribeRequest(), 1, "010000"),
    (
        ConsumerGroupDescribeResponse(
            groups=[DescribedConsumerGroup(error_code=69, error_message="gone", group_id="h")]
        ),
        0,
        "0000000002004505676f6e6502680100000000000000000101800000000000",
    ),
    (
        ConsumerGroupDescribeResponse(
            throttle_time_ms=1,
            groups=[
                DescribedConsumerGroup(
                    group_id="g",
                    group_state="Stable",
                    group_epoch=3,
                    assignment_epoch=2,
                    assignor_name="range",
                    authorized_operations=328,
                    members=[
                        DescribedConsumer(
                            member_id="m",
                            instance_id="i",
                            member_epoch=2,
                            client_id="c",
                            client_host="/127.0.0.1",
                            subscribed_topic_names=["t"],
                            subscribed_topic_regex="t.*",
                            assignment=DescribedAssignment(
                                topic_partitions=[
                                    DescribedTopicPartitions(topic_id=TOPIC_ID, topic_name="t", partitions=[0])
                                ]
                            ),
                            target_assignment=DescribedAssignment(
                                topic_partitions=[
                                    DescribedTopicPartitions(topic_id=TOPIC_ID, topic_name="t", partitions=[0, 1])
                                ]
                            ),
                            member_type=1,
                        )
                    ],
                )
            ],
        ),
        1,
        (
            "0000000102000000026707537461626c6500000003000000020672616e676502026d0269000000000202630b2f3132372e302e302e31"
            "02027404742e2a02000102030405060708090a0b0c0d0e0f02740200000000000002000102030405060708090a0b0c0d0e0f02740300"
            "0000000000000100000100000001480000"
        ),
    ),
]
each_message = pytest.mark.parametrize(
    ("message", "version", "written"),
    [pytest.param(*each, id=f"{type(each[0]).__name__}-{each[1]}") for each in WRITTEN_BY_JAVA],
)


@each_message
def test_same_bytes(message, version, written):
    assert b"".join(encode(message, version)).hex() == written


@each_message
def test_same_values(message, version, written):
    assert decode(type(message), version, bytes.fromhex(written)) == message
