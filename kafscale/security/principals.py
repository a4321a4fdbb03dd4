"""Who a client is."""

from __future__ import annotations

from typing import Final

import attrs

USER: Final = "User"


@attrs.frozen
class Principal:
    """A type and a name, written `User:alice` as in Kafka's ACLs (KafkaPrincipal)."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


# Who has not authenticated, as Kafka calls it: by PLAINTEXT, or by SSL without a certificate.
ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
