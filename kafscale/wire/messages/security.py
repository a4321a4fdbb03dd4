"""Messages about access control lists, SCRAM credentials and SASL logins."""

from __future__ import annotations

from kafscale.wire.schema import Array, Message, Struct, wire


class SaslHandshakeRequest(Message, key=17, versions=(0, 1)):
    """SaslHandshake: by which mechanism a client wants to authenticate."""

    mechanism: str = wire("string")


class SaslHandshakeResponse(Message, answers=SaslHandshakeRequest):
    error_code: int = wire("int16", default=0)
    mechanisms: list[str] = wire(Array("string"), factory=list)


class SaslAuthenticateRequest(Message, key=36, versions=(0, 2), flexible=2):
    """SaslAuthenticate: the messages of a SASL mechanism (KIP-152, KIP-368)."""

    auth_bytes: bytes = wire("bytes")


class SaslAuthenticateResponse(Message, answers=SaslAuthenticateRequest):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    auth_bytes: bytes = wire("bytes", default=b"")
    session_lifetime_ms: int = wire("int64", since=1, default=0)


class DeleteAclsFilter(Struct):
    """Filter of access control lists, in DeleteAcls and DescribeAcls."""

    resource_type_filter: int = wire("int8")
    resource_name_filter: str | None = wire("string", default=None)
    pattern_type_filter: int = wire("int8", default=3)  # literal
    principal_filter: str | None = wire("string", default=None)
    host_filter: str | None = wire("string", default=None)
    operation: int = wire("int8")
    permission_type: int = wire("int8")


class DescribeAclsRequest(DeleteAclsFilter, Message, key=29, versions=(1, 3), flexible=2):
    """DescribeAcls: the access control lists that match a filter (KIP-140)."""


class AclDescription(Struct):
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


class DescribeAclsResource(Struct):
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8", default=3)
    acls: list[AclDescription] = wire(Array(AclDescription), factory=list)


class DescribeAclsResponse(Message, answers=DescribeAclsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    resources: list[DescribeAclsResource] = wire(Array(DescribeAclsResource), factory=list)


class AclCreation(Struct):
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    resource_pattern_type: int = wire("int8", default=3)  # literal
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


class CreateAclsRequest(Message, key=30, versions=(1, 3), flexible=2):
    """CreateAcls: access control lists to add (KIP-140)."""

    creations: list[AclCreation] = wire(Array(AclCreation), factory=list)


class AclCreationResult(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


class CreateAclsResponse(Message, answers=CreateAclsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[AclCreationResult] = wire(Array(AclCreationResult), factory=list)


class DeleteAclsRequest(Message, key=31, versions=(1, 3), flexible=2):
    """DeleteAcls: access control lists to remove, by filters (KIP-140)."""

    filters: list[DeleteAclsFilter] = wire(Array(DeleteAclsFilter), factory=list)


class DeleteAclsMatchingAcl(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8", default=3)
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


class DeleteAclsFilterResult(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    matching_acls: list[DeleteAclsMatchingAcl] = wire(Array(DeleteAclsMatchingAcl), factory=list)


class DeleteAclsResponse(Message, answers=DeleteAclsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    filter_results: list[DeleteAclsFilterResult] = wire(Array(DeleteAclsFilterResult), factory=list)


class UserName(Struct):
    name: str = wire("string")


class DescribeUserScramCredentialsRequest(Message, key=50, versions=(0, 0), flexible=0):
    """DescribeUserScramCredentials: which users have passwords for SCRAM (KIP-554)."""

    users: list[UserName] | None = wire(Array(UserName), default=None)  # None or empty: all


class CredentialInfo(Struct):
    mechanism: int = wire("int8")  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
    iterations: int = wire("int32")


class DescribeUserScramCredentialsResult(Struct):
    user: str = wire("string")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    credential_infos: list[CredentialInfo] = wire(Array(CredentialInfo), factory=list)


class DescribeUserScramCredentialsResponse(Message, answers=DescribeUserScramCredentialsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    results: list[DescribeUserScramCredentialsResult] = wire(Array(DescribeUserScramCredentialsResult), factory=list)


class ScramCredentialDeletion(Struct):
    name: str = wire("string")
    mechanism: int = wire("int8")  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512


class ScramCredentialUpsertion(Struct):
    name: str = wire("string")
    mechanism: int = wire("int8")
    iterations: int = wire("int32")
    salt: bytes = wire("bytes")
    salted_password: bytes = wire("bytes")


class AlterUserScramCredentialsRequest(Message, key=51, versions=(0, 0), flexible=0):
    """AlterUserScramCredentials: add and remove users' passwords for SCRAM (KIP-554)."""

    deletions: list[ScramCredentialDeletion] = wire(Array(ScramCredentialDeletion), factory=list)
    upsertions: list[ScramCredentialUpsertion] = wire(Array(ScramCredentialUpsertion), factory=list)


class AlterUserScramCredentialsResult(Struct):
    user: str = wire("string")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


class AlterUserScramCredentialsResponse(Message, answers=AlterUserScramCredentialsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[AlterUserScramCredentialsResult] = wire(Array(AlterUserScramCredentialsResult), factory=list)
