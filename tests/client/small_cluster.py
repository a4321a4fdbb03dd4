"""Enough of a broker for tests of clients and of the command line: topics, logs and groups in dicts, one node.

It has no durability, no groups with members of its own (a test puts them into `members`), and waits for nothing: a
fetch at the end of a log is answered at once, empty. Whatever a client's test asks of it must hold on the real broker.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import attrs

from kafscale.config import Address
from kafscale.wire import error_codes
from kafscale.wire.batch_header import parse_header, set_base_offset
from kafscale.wire.messages.cluster import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafscale.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from kafscale.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kafscale.wire.messages.records import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafscale.wire.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafscale.wire.records import iterate_records, validate
from tests.devtools.fakes.scripted_broker import ScriptedBroker

NODE_ID = 1
_EARLIEST, _LATEST = -2, -1
_DEFAULTS = {"cleanup.policy": "delete", "retention.ms": "604800000"}


@attrs.define(eq=False)
class SmallLog:
    """The batches of one partition."""

    batches: list[bytearray] = attrs.field(factory=list)
    start_offset: int = 0
    end_offset: int = 0

    def append(self, batch: bytearray) -> int:
        base_offset = self.end_offset
        set_base_offset(memoryview(batch), base_offset, 0)
        self.batches.append(batch)
        self.end_offset = parse_header(memoryview(batch)).next_offset
        return base_offset

    def read(self, offset: int) -> list[bytearray]:
        return [batch for batch in self.batches if parse_header(memoryview(batch)).next_offset > offset]

    def offset_at(self, timestamp_ms: int) -> int:
        if timestamp_ms in (_EARLIEST, _LATEST):
            return self.start_offset if timestamp_ms == _EARLIEST else self.end_offset
        records = (record for batch in self.batches for record in iterate_records(memoryview(batch)))
        return next((record.offset for record in records if record.timestamp_ms >= timestamp_ms), -1)


@attrs.define(eq=False)
class SmallTopic:
    """A topic: its id, logs and configs."""

    topic_id: bytes
    logs: list[SmallLog]
    configs: dict[str, str] = attrs.field(factory=dict)


@attrs.define(eq=False)
class SmallCluster:
    """`address` is what it tells clients to connect to; set it before the first request."""

    address: Address = attrs.field(factory=lambda: Address("127.0.0.1", 0))
    topics: dict[str, SmallTopic] = attrs.field(factory=dict)
    offsets: dict[str, dict[tuple[str, int], int]] = attrs.field(factory=dict)
    members: dict[str, list[DescribedGroupMember]] = attrs.field(factory=dict)
    consumer_members: dict[str, list[DescribedConsumer]] = attrs.field(factory=dict)
    broker: ScriptedBroker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        handlers: dict[type, Any] = {
            MetadataRequest: self._metadata,
            CreateTopicsRequest: self._create_topics,
            DeleteTopicsRequest: self._delete_topics,
            CreatePartitionsRequest: self._create_partitions,
            DescribeConfigsRequest: self._describe_configs,
            IncrementalAlterConfigsRequest: self._alter_configs,
            ProduceRequest: self._produce,
            FetchRequest: self._fetch,
            ListOffsetsRequest: self._list_offsets,
            FindCoordinatorRequest: self._find_coordinator,
            ListGroupsRequest: self._list_groups,
            DescribeGroupsRequest: self._describe_groups,
            ConsumerGroupDescribeRequest: self._describe_consumer_groups,
            DeleteGroupsRequest: self._delete_groups,
            OffsetCommitRequest: self._commit,
            OffsetFetchRequest: self._fetch_offsets,
        }
        self.broker = ScriptedBroker(handlers)

    def create(self, name: str, partition_count: int = 1) -> SmallTopic:
        """Create a topic."""
        logs = [SmallLog() for _ in range(partition_count)]
        return self.topics.setdefault(name, SmallTopic(uuid.uuid4().bytes, logs))

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = sorted(self.topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        if request.allow_auto_topic_creation:
            for name in names:
                self.create(name)
        node = MetadataResponseBroker(node_id=NODE_ID, host=self.address.host, port=self.address.port)
        return MetadataResponse(brokers=[node], topics=[self._described(name) for name in names])

    def _described(self, name: str) -> MetadataResponseTopic:
        if name not in self.topics:
            return MetadataResponseTopic(name=name, error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        partitions = [
            MetadataResponsePartition(
                partition_index=index, leader_id=NODE_ID, replica_nodes=[NODE_ID], isr_nodes=[NODE_ID]
            )
            for index in range(len(self.topics[name].logs))
        ]
        topic_id = self.topics[name].topic_id
        return MetadataResponseTopic(name=name, topic_id=topic_id, partitions=partitions)

    def _create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        results = []
        for wanted in request.topics:
            exists = wanted.name in self.topics
            code = error_codes.TOPIC_ALREADY_EXISTS if exists else error_codes.NONE
            message = f"Topic '{wanted.name}' already exists." if exists else None
            results.append(CreatableTopicResult(name=wanted.name, error_code=code, error_message=message))
            if not exists:
                topic = self.create(wanted.name, max(wanted.num_partitions, 1))
                topic.configs.update({config.name: config.value or "" for config in wanted.configs})
        return CreateTopicsResponse(topics=results)

    def _delete_topics(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        results = []
        for name in [topic.name or "" for topic in request.topics] or request.topic_names:
            known = self.topics.pop(name, None) is not None
            code = error_codes.NONE if known else error_codes.UNKNOWN_TOPIC_OR_PARTITION
            results.append(DeletableTopicResult(name=name, error_code=code))
        return DeleteTopicsResponse(responses=results)

    def _create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        results = []
        for topic in request.topics:
            logs = self.topics[topic.name].logs
            grows = topic.count > len(logs)
            code = error_codes.NONE if grows else error_codes.INVALID_PARTITIONS
            logs += [SmallLog() for _ in range(topic.count - len(logs))]
            results.append(CreatePartitionsTopicResult(name=topic.name, error_code=code))
        return CreatePartitionsResponse(results=results)

    def _describe_configs(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            own = self.topics[resource.resource_name].configs
            configs = [
                DescribeConfigsResourceResult(name=name, value=value, config_source=1 + 4 * (name not in own))
                for name, value in (_DEFAULTS | own).items()
            ]
            results.append(
                DescribeConfigsResult(
                    resource_type=resource.resource_type, resource_name=resource.resource_name, configs=configs
                )
            )
        return DescribeConfigsResponse(results=results)

    def _alter_configs(self, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
        for resource in request.resources:
            configs = self.topics[resource.resource_name].configs
            for change in resource.configs:
                configs.pop(change.name, None)
                if change.config_operation == 0:
                    configs[change.name] = change.value or ""
        return IncrementalAlterConfigsResponse()

    def _produce(self, request: ProduceRequest) -> ProduceResponse | None:
        responses = []
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                assert data.records is not None
                validate(data.records)
                base_offset = self.topics[topic.name].logs[data.index].append(bytearray(data.records))
                answers.append(PartitionProduceResponse(index=data.index, base_offset=base_offset))
            responses.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
        return ProduceResponse(responses=responses) if request.acks else None

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        by_id = {topic.topic_id: topic for topic in self.topics.values()}
        responses = []
        for wanted in request.topics:
            topic = self.topics.get(wanted.topic) or by_id[wanted.topic_id]
            answers = [self._fetched(topic.logs[wanted.partition], wanted) for wanted in wanted.partitions]
            responses.append(FetchableTopicResponse(topic=wanted.topic, topic_id=wanted.topic_id, partitions=answers))
        return FetchResponse(responses=responses)

    def _fetched(self, log: SmallLog, wanted: FetchPartition) -> PartitionData:
        if not log.start_offset <= wanted.fetch_offset <= log.end_offset:
            code = error_codes.OFFSET_OUT_OF_RANGE
            return PartitionData(partition_index=wanted.partition, error_code=code)
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=log.end_offset,
            log_start_offset=log.start_offset,
            records=list(log.read(wanted.fetch_offset)),
        )

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(topics=list(self._listed(request)))

    def _listed(self, request: ListOffsetsRequest) -> Iterator[ListOffsetsTopicResponse]:
        for topic in request.topics:
            found = [
                ListOffsetsPartitionResponse(
                    partition_index=partition.partition_index,
                    offset=self.topics[topic.name].logs[partition.partition_index].offset_at(partition.timestamp),
                )
                for partition in topic.partitions
            ]
            yield ListOffsetsTopicResponse(name=topic.name, partitions=found)

    def _find_coordinator(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        host, port = self.address.host, self.address.port
        found = [Coordinator(key=key, node_id=NODE_ID, host=host, port=port) for key in request.coordinator_keys]
        return FindCoordinatorResponse(node_id=NODE_ID, host=host, port=port, coordinators=found)

    def _list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        groups = [
            ListedGroup(group_id=name, protocol_type="consumer", group_state=self._state(name))
            for name in {**self.offsets, **self.members}
        ]
        return ListGroupsResponse(groups=groups)

    def _state(self, group: str) -> str:
        if group in self.members:
            return "Stable"
        return "Empty" if group in self.offsets else "Dead"

    def _describe_groups(self, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        groups = [
            DescribedGroup(group_id=name, group_state=self._state(name), members=self.members.get(name, []))
            for name in request.groups
        ]
        return DescribeGroupsResponse(groups=groups)

    def _describe_consumer_groups(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        groups = [
            DescribedConsumerGroup(group_id=name, group_state="Reconciling", members=self.consumer_members[name])
            if name in self.consumer_members
            else DescribedConsumerGroup(group_id=name, error_code=error_codes.GROUP_ID_NOT_FOUND)
            for name in request.group_ids
        ]
        return ConsumerGroupDescribeResponse(groups=groups)

    def _delete_groups(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        results = []
        for name in request.groups_names:
            code = error_codes.NON_EMPTY_GROUP if name in self.members else error_codes.NONE
            if not code and self.offsets.pop(name, None) is None:
                code = error_codes.GROUP_ID_NOT_FOUND
            results.append(DeletableGroupResult(group_id=name, error_code=code))
        return DeleteGroupsResponse(results=results)

    def _commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        code = error_codes.UNKNOWN_MEMBER_ID if request.group_id in self.members else error_codes.NONE
        topics = []
        for topic in request.topics:
            for each in topic.partitions if not code else []:
                committed = self.offsets.setdefault(request.group_id, {})
                committed[topic.name, each.partition_index] = each.committed_offset
            answers = [
                OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                for partition in topic.partitions
            ]
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=answers))
        return OffsetCommitResponse(topics=topics)

    def _fetch_offsets(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        groups = [
            OffsetFetchResponseGroup(group_id=group.group_id, topics=self._committed(group.group_id))
            for group in request.groups
        ]
        return OffsetFetchResponse(topics=self._committed(request.group_id), groups=groups)

    def _committed(self, group: str) -> list[OffsetFetchResponseTopic]:
        return [
            OffsetFetchResponseTopic(
                name=topic,
                partitions=[OffsetFetchResponsePartition(partition_index=partition, committed_offset=offset)],
            )
            for (topic, partition), offset in self.offsets.get(group, {}).items()
        ]
