"""Which topics a member subscribes to: all that the broker ever reads in a member's metadata."""

from __future__ import annotations

from collections.abc import Iterable

from kafscale.errors import DecodeError
from kafscale.wire.codec import decoder
from kafscale.wire.messages.consumer_groups import ConsumerProtocolSubscription

VERSION_BYTES = 2  # an int16 in front; every version begins with the fields of version 0


def subscribed_topics(metadata_of_members: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of a group of protocol type "consumer"; None where a member's metadata can't be read."""
    decode = decoder(ConsumerProtocolSubscription, 0)
    topics: set[str] = set()
    for metadata in metadata_of_members:
        try:
            subscription, _ = decode(memoryview(metadata), VERSION_BYTES)
        except DecodeError:
            return None
        topics.update(subscription.topics)
    return frozenset(topics)
