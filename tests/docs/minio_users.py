"""Users of a MinIO, each with a policy of its own, and what a client of each needs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

import attrs
import botocore.session
from minio.credentials.providers import StaticProvider
from minio.minioadmin import MinioAdmin

from kafscale.store.s3.sigv4 import S3Credentials
from tests.devtools.external.s3_processes import S3Process


@attrs.frozen(kw_only=True)
class MinioUser:
    """A user with credentials at a server."""

    endpoint: str
    credentials: S3Credentials

    @property
    def environ(self) -> Mapping[str, str]:
        """Return the variables by which programs know who they are."""
        return {
            "AWS_ACCESS_KEY_ID": self.credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.credentials.secret_access_key,
        }

    def client(self) -> Any:
        """Make botocore's client of S3."""
        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.credentials.access_key_id,
            aws_secret_access_key=self.credentials.secret_access_key,
        )


def root_of(server: S3Process) -> MinioUser:
    """Give who may do everything."""
    return MinioUser(endpoint=server.endpoint, credentials=server.credentials)


def add_user(server: S3Process, name: str, policy: str) -> MinioUser:
    """Make a user who may do what the policy (IAM's JSON) allows, and nothing else."""
    root = server.credentials
    host = server.endpoint.removeprefix("http://")
    provider = StaticProvider(root.access_key_id, root.secret_access_key)
    admin = MinioAdmin(endpoint=host, credentials=provider, secure=False)
    secret = secrets.token_hex(16)
    admin.policy_add(name, policy=json.loads(policy))
    admin.user_add(name, secret)
    admin.policy_set(name, user=name)
    return MinioUser(endpoint=server.endpoint, credentials=S3Credentials(access_key_id=name, secret_access_key=secret))
