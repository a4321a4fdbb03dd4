"""AlterUserScramCredentials (51, KIP-554): add, change and remove the passwords of users.

v0  (flexible) one change of each user: a salted password, or the removal of one mechanism's

`kafka-configs.sh --alter --add-config 'SCRAM-SHA-512=[password=…]' --entity-type users` sends it. Changes act at the
next login. Connected clients stay until they must authenticate anew (`--connections-max-reauth`), as in Kafka. The
changes of a request are written together and logged by `kafscale.audit`. As in Kafka, a salted password may have any
length but 0: a wrong one shows at the login. A salt has 1 to 1,024 bytes.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call, check_batch_size
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.scram_users import CredentialKey
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.login.scram import SALT_LEAST_BYTES
from kafscale.security.verifiers import (
    ITERATIONS_LEAST,
    ITERATIONS_MOST,
    SALT_MOST_BYTES,
    SCRAM_TYPES,
    ScramVerifier,
    check_user_name,
    verifier_of_salted,
)
from kafscale.wire.error_codes import (
    DUPLICATE_RESOURCE,
    RESOURCE_NOT_FOUND,
    UNACCEPTABLE_CREDENTIAL,
    UNSUPPORTED_SASL_MECHANISM,
)
from kafscale.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)


async def handle(
    services: Services, call: Call, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Accept or refuse each user's change by itself; the accepted ones take effect together."""
    results: dict[str, AlterUserScramCredentialsResult] = {}
    changes: dict[str, tuple[CredentialKey, ScramVerifier | None]] = {}
    asked: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    async for alteration in in_turns(asked):
        result = AlterUserScramCredentialsResult(user=alteration.name)
        if alteration.name in results:
            changes.pop(alteration.name, None)
            result.error_code = DUPLICATE_RESOURCE
            result.error_message = "A user credential cannot be altered twice in the same request"
        else:
            try:
                check_batch_size(len(asked))
                changes[alteration.name] = _change(services, alteration)
            except KafkaError as exc:
                result.error_code, result.error_message = exc.code, exc.message
        results[alteration.name] = result
    if changes:
        try:
            await services.scram_users.alter(dict(changes.values()))
        except KafkaError as exc:
            for name in changes:
                results[name].error_code, results[name].error_message = exc.code, exc.message
        else:
            async for key, verifier in in_turns(changes.values()):
                event = "password_removed" if verifier is None else "password_set"
                services.access.audit.changed(event, call, user=key.user, mechanism=key.mechanism.value)
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _change(
    services: Services, asked: ScramCredentialDeletion | ScramCredentialUpsertion
) -> tuple[CredentialKey, ScramVerifier | None]:
    if not asked.name:
        raise KafkaError(UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if asked.mechanism not in SCRAM_TYPES:
        raise KafkaError(UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    key = CredentialKey(SCRAM_TYPES[asked.mechanism], asked.name)
    if isinstance(asked, ScramCredentialUpsertion):
        return key, _verifier(key, asked)
    if not services.scram_users.has(key):
        raise KafkaError(RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return key, None


def _verifier(key: CredentialKey, asked: ScramCredentialUpsertion) -> ScramVerifier:
    try:
        check_user_name(asked.name)
    except ValueError as exc:
        raise KafkaError(UNACCEPTABLE_CREDENTIAL, str(exc)) from exc
    if asked.iterations < ITERATIONS_LEAST:
        raise KafkaError(UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if asked.iterations > ITERATIONS_MOST:
        raise KafkaError(UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    salt, salted_password = bytes(asked.salt), bytes(asked.salted_password)
    if not SALT_LEAST_BYTES <= len(salt) <= SALT_MOST_BYTES:
        raise KafkaError(UNACCEPTABLE_CREDENTIAL, f"The salt must have {SALT_LEAST_BYTES} to {SALT_MOST_BYTES} bytes")
    if not salted_password:
        raise KafkaError(UNACCEPTABLE_CREDENTIAL, "The salted password must not be empty")
    return verifier_of_salted(key.mechanism, salted_password, salt, asked.iterations)


API = Api(
    51, "AlterUserScramCredentials", 0, 0, AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, handle
)
