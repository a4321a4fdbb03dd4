"""Quotas of users, client ids and IP addresses.

An entity is a user, a client id, both, or an IP address. In place of each name there may be the default of all names
without a quota of their own. Each quota key is looked up for itself: a client whose user has only a rate for consuming
has the default rate for producing. The first of these entities counts (ClientQuotaManager.DefaultQuotaCallback):

    users/U/clients/C                 each client id of each user has the rate for itself
    users/U/clients/<default>         each client id of each user has the rate for itself
    users/U                           all client ids of the user share it
    users/<default>/clients/C         each client id of each user has the rate for itself
    users/<default>/clients/<default> each client id of each user has the rate for itself
    users/<default>                   all client ids of each user share it
    clients/C                         all users with the client id share it
    clients/<default>                 all users with the same client id share it

Keys of the metadata store: `client-quotas/client-id/<id>` and `client-quotas/default-client-id` for client ids alone,
as in the first versions, and `quotas/<entity>` for all other entities.
"""

from __future__ import annotations

import enum
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, Literal
from urllib.parse import quote, unquote

import attrs

from kafscale.cluster.metadata.base import Change, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.registries.base import EntryRegistry
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import POLICY_VIOLATION

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

# The types of entities, in messages and in keys of the store.
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

CLIENT_PREFIX: Final = "client-quotas/"
OTHERS_PREFIX: Final = "quotas/"
_NAMED_CLIENT: Final = f"{CLIENT_PREFIX}client-id/"
_DEFAULT_CLIENT: Final = f"{CLIENT_PREFIX}default-client-id"


class Default(enum.Enum):
    """Name of the default entity."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT
Name = str | Literal[Default.DEFAULT]


@attrs.frozen(kw_only=True)
class QuotaEntity:
    """The clients that a quota is for. None is any name."""

    user: Name | None = None
    client_id: Name | None = None
    ip: Name | None = None

    @classmethod
    def of(cls, names: Mapping[str, Name]) -> QuotaEntity:
        return cls(user=names.get(USER), client_id=names.get(CLIENT_ID), ip=names.get(IP))

    @property
    def names(self) -> Mapping[str, Name]:
        all_names = {USER: self.user, CLIENT_ID: self.client_id, IP: self.ip}
        return {entity_type: name for entity_type, name in all_names.items() if name is not None}

    @property
    def key(self) -> str:
        """Key of the store: `quotas/user=alice&client-id` is the user alice with the default client id."""
        if self.names.keys() == {CLIENT_ID}:
            return _DEFAULT_CLIENT if self.client_id is DEFAULT else f"{_NAMED_CLIENT}{self.client_id}"
        parts = (kind if name is DEFAULT else f"{kind}={quote(name, safe='')}" for kind, name in self.names.items())
        return OTHERS_PREFIX + "&".join(parts)

    @classmethod
    def parse(cls, key: str) -> QuotaEntity | None:
        """Parse a key of the store; None for a type of entity of a later version."""
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
    """The quota of a client, and the clients that share it: None is any name."""

    value: float
    user: str | None = None
    client_id: str | None = None


@attrs.define(eq=False, repr=False)
class QuotaLimits:
    _by_names: dict[tuple[Name | None, Name | None], float]  # user and client id
    _by_ip: dict[Name, float]

    @classmethod
    def of(cls, entities: Iterable[tuple[QuotaEntity, float]]) -> QuotaLimits:
        limits = cls({}, {})
        for entity, value in entities:
            if entity.ip is not None:
                limits._by_ip[entity.ip] = value
            else:
                limits._by_names[entity.user, entity.client_id] = value
        return limits

    def limit(self, user: str, client_id: str) -> Limit | None:
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
        """Return the quota of an address in canonical form, or else the default."""
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


QUOTAS_MAX_COUNT = 10_000  # every DescribeClientQuotas looks at all; Kafka has no limit

Values = Mapping[str, float]  # by key

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class QuotaChange:
    """New values of an entity by quota key; None removes a key."""

    entity: QuotaEntity
    values: Mapping[str, float | None]


@attrs.define(eq=False, repr=False)
class ClientQuotas(EntryRegistry):
    PREFIXES: ClassVar = (CLIENT_PREFIX, OTHERS_PREFIX)

    _by_entity: dict[QuotaEntity, Values] = attrs.field(factory=dict, init=False)  # a new one after each change
    _limits: Mapping[str, QuotaLimits] = attrs.field(factory=dict, init=False)  # by key

    def _apply(self, change: Change) -> None:
        self._by_entity = dict(self._by_entity)  # callers of `all` iterate over the old one in several turns
        super()._apply(change)

    def _put(self, key: str, value: bytes) -> None:
        if (entity := QuotaEntity.parse(key)) is None:
            logger.warning("ignoring quota %s of a kind of entity that only a later version of KafScale knows", key)
        elif (values := self._follower.read(key, value, partial(decode, dict[str, float]))) is not None:
            self._by_entity[entity] = values

    def _delete(self, key: str) -> None:
        if (entity := QuotaEntity.parse(key)) is not None:
            self._by_entity.pop(entity, None)

    def _notify(self) -> None:
        self._limits = _limits_of(self._by_entity)
        super()._notify()

    def all(self) -> Mapping[QuotaEntity, Values]:
        """Return all values by entity, in a mapping that does not change."""
        return self._by_entity

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        limits = self._limits.get(key)
        return None if limits is None else limits.limit(user, client_id)

    def connection_rate(self, address: str) -> float | None:
        """Return how many connections an address in canonical form may open in a second, if there is a limit."""
        limits = self._limits.get(CONNECTION_CREATION_RATE)
        return None if limits is None else limits.ip_limit(address)

    def has(self, key: str) -> bool:
        """Tell whether any entity has a value of this key."""
        return key in self._limits

    async def alter(self, changes: Sequence[QuotaChange]) -> None:
        """Apply all changes in order, in one transaction. Raises KafkaError and the store's errors."""

        async def plan(revision: int) -> Transaction:
            changed: dict[QuotaEntity, Values] = {}
            async for change in in_turns(changes):
                before = changed.get(change.entity, self._by_entity.get(change.entity, {}))
                after = {**before, **change.values}
                changed[change.entity] = {key: value for key, value in after.items() if value is not None}
            added_count = sum(bool(values) and entity not in self._by_entity for entity, values in changed.items())
            removed_count = sum(not values and entity in self._by_entity for entity, values in changed.items())
            if added_count > removed_count and len(self._by_entity) + added_count - removed_count > QUOTAS_MAX_COUNT:
                raise KafkaError(
                    POLICY_VIOLATION,
                    f"there are {QUOTAS_MAX_COUNT:,} client quotas, the most that a cluster may have: remove some",
                )
            return Transaction(
                puts={entity.key: encode(dict(values)) async for entity, values in in_turns(changed.items()) if values},
                deletes=[entity.key for entity, values in changed.items() if not values],
                planned_from=self._planned_from(revision),
            )

        await self._commit(plan)


def _limits_of(by_entity: Mapping[QuotaEntity, Values]) -> Mapping[str, QuotaLimits]:
    by_key: dict[str, list[tuple[QuotaEntity, float]]] = defaultdict(list)
    for entity, values in by_entity.items():
        for key, value in values.items():
            by_key[key].append((entity, value))
    return {key: QuotaLimits.of(entities) for key, entities in by_key.items()}
