"""Ids that are made up once and then kept: random UUIDs, as Kafka makes them.

Topics, the cluster and its log directory have one, and so does each attempt to claim the lead.
"""

from __future__ import annotations

import base64
import uuid


def random_uuid() -> bytes:
    """A random UUID, not one of those that Kafka reserves (0 to 99) nor one whose base64 text begins with a dash."""
    while True:
        value = uuid.uuid4().bytes
        if int.from_bytes(value) >= 100 and not uuid_text(value).startswith("-"):
            return value


def uuid_text(value: bytes) -> str:
    """16 bytes as Kafka writes them: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
