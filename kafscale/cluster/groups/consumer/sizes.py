"""What consumer groups take in memory: estimates, counted in the bound that all groups share (`GroupStateBytes`)."""

from __future__ import annotations

from kafscale.cluster.groups.assignors.partitions import Partitions, count
from kafscale.cluster.groups.consumer.members import Member

MEMBER_BYTES = 1024
TOPIC_NAME_BYTES = 64
TOPIC_BYTES = 256  # a topic in an assignment, with its set of partitions
PARTITION_BYTES = 64  # in that set, and in the index of who has it
REGEX_BYTES = 256
PROTOCOL_BYTES = 128


def metadata_bytes(member: Member) -> int:
    """Return how many bytes what a member says about itself takes."""
    texts = (member.instance_id, member.rack_id, member.client_id, member.client_host, member.server_assignor)
    size_bytes = sum(len(text) for text in texts if text is not None) + len(member.member_id)
    names = member.subscription.topic_names
    size_bytes += len(member.subscription.topic_regex) + len(names) * TOPIC_NAME_BYTES + sum(map(len, names))
    if member.classic is not None:
        protocols = member.classic.supported_protocols
        size_bytes += sum(PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in protocols)
    return size_bytes


def partitions_bytes(partitions: Partitions) -> int:
    """Return how many bytes some partitions take in an assignment."""
    return len(partitions) * TOPIC_BYTES + count(partitions) * PARTITION_BYTES


def member_bytes(member: Member) -> int:
    """Return how many bytes a member takes, with what it has."""
    return (
        MEMBER_BYTES
        + metadata_bytes(member)
        + partitions_bytes(member.assigned)
        + partitions_bytes(member.pending_revocation)
    )


def regex_bytes(regex: str, topics: frozenset[str]) -> int:
    """Return how many bytes a regular expression takes, with the topics that it has found."""
    return REGEX_BYTES + len(regex) + len(topics) * TOPIC_NAME_BYTES + sum(map(len, topics))
