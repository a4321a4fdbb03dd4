"""Random UUIDs as Kafka makes them: of topics, of the cluster, of its log directory, and of claims."""

from __future__ import annotations

import base64
import uuid


def random_uuid() -> bytes:
    """Return a random UUID, except those that Kafka reserves (0 to 99) or whose base64 text begins with a dash."""
    while True:
        value = uuid.uuid4().bytes
        if int.from_bytes(value) >= 100 and not uuid_text(value).startswith("-"):
            return value


def uuid_text(value: bytes) -> str:
    """Return 16 bytes as Kafka writes them: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
