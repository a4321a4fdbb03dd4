"""Whom a quota is for, which of several applies to a client, and with whom the client shares it.

An entity is Kafka's: a user, a client id, both, or an IP address; in place of each name there may be the default of all
that have none of their own. Each key of a quota counts for itself: a client whose user has a rate for consuming alone
has the default's for producing. For one key the first of these applies (ClientQuotaManager.DefaultQuotaCallback):

    users/U/clients/C                 each client id of each user has as much
    users/U/clients/<default>         each client id of each user has as much
    users/U                           all client ids of the user share it
    users/<default>/clients/C         each client id of each user has as much
    users/<default>/clients/<default> each client id of each user has as much
    users/<default>                   all client ids of each user share it
    clients/C                         all users with the client id share it
    clients/<default>                 all users with the same client id share it
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal
from urllib.parse import quote, unquote

import attrs

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

# The types of entities, as clients and keys of the store have them.
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

# Where client ids are alone, keys of the store are those of the versions that knew nothing else.
CLIENT_PREFIX: Final = "client-quotas/"
OTHERS_PREFIX: Final = "quotas/"
_NAMED_CLIENT: Final = f"{CLIENT_PREFIX}client-id/"
_DEFAULT_CLIENT: Final = f"{CLIENT_PREFIX}default-client-id"


class Default(enum.Enum):
    """What stands in place of a name for all that have no quota of their own."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT
Name = str | Literal[Default.DEFAULT]


@attrs.frozen(kw_only=True)
class QuotaEntity:
    """Whom a quota is for. What it says nothing about is None."""

    user: Name | None = None
    client_id: Name | None = None
    ip: Name | None = None

    @classmethod
    def of(cls, names: Mapping[str, Name]) -> QuotaEntity:
        """Make one of its names by type."""
        return cls(user=names.get(USER), client_id=names.get(CLIENT_ID), ip=names.get(IP))

    @property
    def names(self) -> Mapping[str, Name]:
        """Its names, by type."""
        all_names = {USER: self.user, CLIENT_ID: self.client_id, IP: self.ip}
        return {entity_type: name for entity_type, name in all_names.items() if name is not None}

    @property
    def key(self) -> str:
        """Its key in the store: `quotas/user=alice&client-id` is of the user alice with any client id."""
        if self.names.keys() == {CLIENT_ID}:
            return _DEFAULT_CLIENT if self.client_id is DEFAULT else f"{_NAMED_CLIENT}{self.client_id}"
        parts = (kind if name is DEFAULT else f"{kind}={quote(name, safe='')}" for kind, name in self.names.items())
        return OTHERS_PREFIX + "&".join(parts)

    @classmethod
    def parse(cls, key: str) -> QuotaEntity | None:
        """Read a key of the store; None for an entity of a kind that only a later version knows."""
        if key == _DEFAULT_CLIENT:
            return cls(client_id=DEFAULT)
        if key.startswith(CLIENT_PREFIX):
            return cls(client_id=key.removeprefix(_NAMED_CLIENT)) if key.startswith(_NAMED_CLIENT) else None
        names: dict[str, Name] = {}
        for part in key.removeprefix(OTHERS_PREFIX).split("&"):
            kind, has_name, name = part.partition("=")
            names[kind] = unquote(name) if has_name else DEFAULT
        return cls.of(names) if names.keys() <= {USER, CLIENT_ID, IP} else None


@attrs.frozen(kw_only=True)
class Limit:
    """The quota that applies to a client, and who shares it: None is whoever it may be."""

    value: float
    user: str | None = None
    client_id: str | None = None


@attrs.define(eq=False, repr=False)
class Limits:
    """The quotas of one key."""

    _by_names: dict[tuple[Name | None, Name | None], float]  # user and client id
    _by_ip: dict[Name, float]

    @classmethod
    def of(cls, entities: Iterable[tuple[QuotaEntity, float]]) -> Limits:
        """Make them of who has which."""
        limits = cls({}, {})
        for entity, value in entities:
            if entity.ip is not None:
                limits._by_ip[entity.ip] = value
            else:
                limits._by_names[entity.user, entity.client_id] = value
        return limits

    def limit(self, user: str, client_id: str) -> Limit | None:
        """Return what applies to a client; None if nothing does."""
        for names in _in_order(user, client_id):
            value = self._by_names.get(names)
            if value is not None:
                return Limit(
                    value=value,
                    user=None if names[0] is None else user,
                    client_id=None if names[1] is None else client_id,
                )
        return None

    def ip_limit(self, address: str) -> float | None:
        """Return what applies to a canonical address: its own, or else the default's."""
        own = self._by_ip.get(address)
        return self._by_ip.get(DEFAULT) if own is None else own


def _in_order(user: str, client_id: str) -> Iterator[tuple[Name | None, Name | None]]:
    yield user, client_id
    yield user, DEFAULT
    yield user, None
    yield DEFAULT, client_id
    yield DEFAULT, DEFAULT
    yield DEFAULT, None
    yield None, client_id
    yield None, DEFAULT
