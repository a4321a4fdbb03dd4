"""How a listener is secured: Kafka's security protocols, which are a setting."""

from __future__ import annotations

from kafscale.config.values import SecurityProtocol

__all__ = ["SecurityProtocol"]
