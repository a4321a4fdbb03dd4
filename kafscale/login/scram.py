"""The library scramp, imported when it is first needed: that takes 50 ms."""

from __future__ import annotations

from typing import Any, Final

SALT_LEAST_BYTES: Final = 1  # Kafka has no least. RFC 5802 has none either; base64 of nothing is not a salt there


def load_scramp() -> Any:
    """Import scramp, patched to take short salts, as Kafka's brokers do: version 1.5 refuses those below 12 bytes."""
    import scramp
    from scramp import core

    if hasattr(core, "Salt"):
        core.Salt.MIN_LENGTH = SALT_LEAST_BYTES
    return scramp
