"""Users of a broker with SASL listeners, and their rights; an administrator without SASL grants them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

from confluent_kafka.admin import (  # type: ignore[attr-defined] # which it has, and does not list
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kafscale.config import SecurityProtocol
from tests.devtools.external.clients import DEADLINE_SECONDS
from tests.devtools.external.logins import MTLS, Login
from tests.devtools.processes.sasl import PASSWORD, SaslBroker, sign

# Options of a broker. Certificates are of the user that is their common name.
WITH_LISTS = (
    *("--authorizer", "acl", "--super-user", "User:ANONYMOUS"),
    *("--ssl-principal-mapping-rules", "RULE:^CN=(.*)$/$1/"),
)
SCRAMS = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
TOPIC_AND_GROUP = ResourceType.TOPIC, ResourceType.GROUP
_numbers = count()


def login_of_somebody(
    broker: SaslBroker, mechanism: str, topic: str, protocol: SecurityProtocol = SecurityProtocol.SASL_SSL
) -> Login:
    """Make a user with rights to this topic and its group alone."""
    user = f"user-{next(_numbers)}"
    allow(broker, user, topic)
    if mechanism == MTLS:
        certificate = broker.tls.authority.issue(user)
        protocol = SecurityProtocol.SSL
        return Login(broker=broker, mechanism=mechanism, user=user, protocol=protocol, certificate=certificate)
    add(broker, user)
    token = partial(sign, {"sub": user})
    return Login(broker=broker, mechanism=mechanism, user=user, token=token, protocol=protocol)


def add(broker: SaslBroker, user: str) -> None:
    for scram in SCRAMS:
        _alter(broker, UserScramCredentialUpsertion(user, ScramCredentialInfo(scram, 4096), PASSWORD.encode()))
    broker.process.settle()


def remove(broker: SaslBroker, user: str) -> None:
    for scram in SCRAMS:
        _alter(broker, UserScramCredentialDeletion(user, scram))
    broker.process.settle()


def allow(
    broker: SaslBroker,
    user: str,
    name: str,
    *,
    kinds: Sequence[ResourceType] = TOPIC_AND_GROUP,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> None:
    """Allow the user every operation on the resources of this name."""
    allowed = f"User:{user}", "*", AclOperation.ALL, AclPermissionType.ALLOW
    admin = _admin(broker)
    for future in admin.create_acls([AclBinding(kind, name, pattern, *allowed) for kind in kinds]).values():
        future.result(DEADLINE_SECONDS)
    broker.process.settle()


def disallow(broker: SaslBroker, user: str) -> None:
    """Take all rights from the user."""
    everything = ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY
    of_user = AclBindingFilter(*everything, AclPermissionType.ANY)  # type: ignore[arg-type] # None is for any
    admin = _admin(broker)
    for future in admin.delete_acls([of_user]).values():
        assert list(future.result(DEADLINE_SECONDS))
    broker.process.settle()


def _alter(broker: SaslBroker, change: UserScramCredentialUpsertion | UserScramCredentialDeletion) -> None:
    admin = _admin(broker)
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(DEADLINE_SECONDS)


def _admin(broker: SaslBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.process.bootstrap})
