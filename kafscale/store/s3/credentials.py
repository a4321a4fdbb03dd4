"""Sources of credentials for S3, sans-IO: environment, profile, web identity, container, instance.

A provider returns a generator, which yields HTTP calls, is sent their answers (None for a call without one), and
returns credentials, so that both the broker and blocking readers can drive it. Imports neither trio nor httpx. Source:
"Credential providers" in the AWS SDKs reference guide.
"""

from __future__ import annotations

import configparser
import datetime
import ipaddress
import json
import re
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import attrs

from kafscale.errors import AccessDenied, NoCredentials, StoreUnavailable
from kafscale.store.s3.sigv4 import S3Credentials

CONTAINER_ORIGIN = "http://169.254.170.2"
# Those that may be given a container's token without TLS: Amazon ECS and EKS.
CONTAINER_HOSTS = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23"})
INSTANCE_ORIGIN = "http://169.254.169.254"
WORD = re.compile(r"[!-~]{1,4096}")  # what names and tokens of the metadata service are; not the page of a proxy
INSTANCE_TOKEN_SECONDS = 21_600  # the longest that the service gives, and what the SDKs ask for

# Before expiry: as the AWS SDKs do, early enough for a service that is down for some minutes.
REFRESH_AHEAD_SECONDS = 600
# A refresh that failed while the old credentials are good is tried again this much later.
REFRESH_RETRY_SECONDS = 30

# Outside AWS the addresses above do not answer, and start-up waits for that.
LOCAL_TIMEOUT_SECONDS = 1.0
STS_TIMEOUT_SECONDS = 10.0
ANSWER_MAX_BYTES = 1 << 20  # of any of these; credentials have a few KiB


@attrs.frozen(kw_only=True)
class HttpCall:
    """An HTTP request that a lookup needs. Its answer has at most ANSWER_MAX_BYTES.

    timeout_seconds: without progress. deadline_seconds: for all of it.
    """

    method: str = "GET"
    url: str
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    timeout_seconds: float = LOCAL_TIMEOUT_SECONDS

    @property
    def deadline_seconds(self) -> float:
        return 3 * self.timeout_seconds


@attrs.frozen(kw_only=True)
class HttpAnswer:
    status: int
    body: bytes


# A lookup is sent None where a call got no answer. Raises NotConfigured, NoCredentials, AccessDenied, StoreUnavailable.
Lookup = Generator[HttpCall, HttpAnswer | None, S3Credentials]
Providers = Mapping[str, Callable[[], Lookup]]  # by the name for messages


class NotConfigured(Exception):
    """This provider has nothing to offer, for this reason; the next one is asked."""


def refresh_at_seconds(found: S3Credentials, now_seconds: float) -> float:
    """Return when to look for newer credentials; infinite for those that do not expire."""
    if found.expires_at_seconds is None:
        return float("inf")
    if found.expires_at_seconds <= now_seconds:
        # They were handed out as good: more likely this machine's clock is wrong. The store refuses what has expired.
        return now_seconds + REFRESH_RETRY_SECONDS
    # Short-lived ones are refreshed at half of their life, rather than with every request.
    ahead_seconds = min(REFRESH_AHEAD_SECONDS, (found.expires_at_seconds - now_seconds) / 2)
    return found.expires_at_seconds - ahead_seconds


def default_providers(environ: Mapping[str, str], home: Path) -> Providers:
    """Return the places where AWS SDKs look, in their order."""
    return {
        "environment": partial(_of_environment, environ),
        "web identity": partial(_of_web_identity, environ),
        "profile file": partial(_of_profile, environ, home),
        "container": partial(_of_container, environ),
        "instance metadata": partial(_of_instance, environ),
    }


def given(credentials: S3Credentials) -> Providers:
    return {"settings": partial(_given, credentials)}


def search(providers: Providers) -> Lookup:
    """Return the credentials of the first configured provider. Raises NoCredentials."""
    reasons = []
    for name, provider in providers.items():
        try:
            return (yield from provider())
        except NotConfigured as exc:
            reasons.append(f"{name} ({exc})")
    raise NoCredentials(
        f"no S3 credentials found; tried {', '.join(reasons)}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "give this machine a role"
    )


def _given(credentials: S3Credentials) -> Lookup:
    yield from ()
    return credentials


def _of_environment(environ: Mapping[str, str]) -> Lookup:
    yield from ()
    access_key_id = environ.get("AWS_ACCESS_KEY_ID", "")
    secret_access_key = environ.get("AWS_SECRET_ACCESS_KEY", "")
    if not access_key_id:
        raise NotConfigured("AWS_ACCESS_KEY_ID is not set")
    if not secret_access_key:
        raise NoCredentials("AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not")
    return S3Credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=environ.get("AWS_SESSION_TOKEN") or None,
    )


def _of_profile(environ: Mapping[str, str], home: Path) -> Lookup:
    """Read the profile that AWS_PROFILE names, or `default`: keys, or a role and a web identity token."""
    profile = profile_name(environ)
    settings = read_profile(environ, home)
    if settings is None:
        if "AWS_PROFILE" in environ:
            raise NoCredentials(f"AWS_PROFILE is {profile!r}, but no such profile is in ~/.aws")
        raise NotConfigured(f"no profile {profile!r} in ~/.aws")
    if "aws_access_key_id" in settings and "aws_secret_access_key" in settings:
        return S3Credentials(
            access_key_id=settings["aws_access_key_id"],
            secret_access_key=settings["aws_secret_access_key"],
            session_token=settings.get("aws_session_token"),
        )
    if "role_arn" in settings and "web_identity_token_file" in settings:
        role = {
            "AWS_ROLE_ARN": settings["role_arn"],
            "AWS_WEB_IDENTITY_TOKEN_FILE": settings["web_identity_token_file"],
            "AWS_ROLE_SESSION_NAME": settings.get("role_session_name", ""),
            "AWS_REGION": settings.get("region", ""),
        }
        return (yield from _of_web_identity(role))
    for key in ("role_arn", "sso_session", "sso_start_url", "credential_process"):
        if key in settings:
            raise NoCredentials(
                f"profile {profile!r} uses {key}, which KafScale can't; export its credentials into the environment"
            )
    raise NotConfigured(f"profile {profile!r} has no keys")


def _of_web_identity(environ: Mapping[str, str]) -> Lookup:
    """Trade the token in a file, as Kubernetes gives to pods, at STS (AssumeRoleWithWebIdentity)."""
    role_arn = environ.get("AWS_ROLE_ARN", "")
    token_file = environ.get("AWS_WEB_IDENTITY_TOKEN_FILE", "")
    if not role_arn or not token_file:
        raise NotConfigured("AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE are not set")
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": role_arn,
        "RoleSessionName": environ.get("AWS_ROLE_SESSION_NAME") or "kafscale",
        "WebIdentityToken": _read_secret_file(token_file, "AWS_WEB_IDENTITY_TOKEN_FILE"),
    }
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    host = f"sts.{region}.amazonaws.com" if region else "sts.amazonaws.com"
    answer = yield HttpCall(
        method="POST",
        url=environ.get("AWS_ENDPOINT_URL_STS") or f"https://{host}/",
        headers={"content-type": "application/x-www-form-urlencoded"},
        body=urlencode(form).encode(),
        timeout_seconds=STS_TIMEOUT_SECONDS,
    )
    return _credentials_of_sts(_require(answer, f"STS refused {role_arn}"))


def _of_container(environ: Mapping[str, str]) -> Lookup:
    """Ask the agent that gives a container its role: Amazon ECS, EKS pod identities and alike."""
    relative = environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "")
    url = f"{CONTAINER_ORIGIN}{relative}" if relative else environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
    if not url:
        raise NotConfigured("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI are not set")
    if not _may_be_told_a_token(url):
        raise NoCredentials(f"AWS_CONTAINER_CREDENTIALS_FULL_URI must be https or the agent's own address: {url}")
    token = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    if token_file := environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", ""):
        token = _read_secret_file(token_file, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    answer = yield HttpCall(url=url, headers={"authorization": token} if token else {})
    return _credentials_of_json(_require(answer, f"the container's agent at {url} refused"))


def _of_instance(environ: Mapping[str, str]) -> Lookup:
    """Ask version 2 of an EC2 instance's metadata service: a session token, the role's name, its credentials."""
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise NotConfigured("AWS_EC2_METADATA_DISABLED is true")
    origin = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", INSTANCE_ORIGIN).rstrip("/")
    answer = yield HttpCall(
        method="PUT",
        url=f"{origin}/latest/api/token",
        headers={"x-aws-ec2-metadata-token-ttl-seconds": str(INSTANCE_TOKEN_SECONDS)},
    )
    token = None if answer is None or answer.status != 200 else _word(answer.body)
    if token is None:
        raise NotConfigured(f"no service at {origin}")
    headers = {"x-aws-ec2-metadata-token": token}
    url = f"{origin}/latest/meta-data/iam/security-credentials/"
    answer = yield HttpCall(url=url, headers=headers)
    if answer is not None and answer.status == 404:
        raise NotConfigured("the instance has no role")
    role = _word(_require(answer, "the instance's metadata service refused"))
    if role is None:
        raise StoreUnavailable("the instance's metadata service sent no name of a role")
    answer = yield HttpCall(url=url + role, headers=headers)
    return _credentials_of_json(_require(answer, "the instance's metadata service refused"))


def profile_name(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_PROFILE") or "default"


def read_profile(environ: Mapping[str, str], home: Path) -> dict[str, str] | None:
    """Return the profile's settings, those of the credentials file first; None if it is in neither file."""
    profile = profile_name(environ)
    section = profile if profile == "default" else f"profile {profile}"
    config = _read_ini(environ.get("AWS_CONFIG_FILE") or str(home / ".aws" / "config"))
    secrets = _read_ini(environ.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / ".aws" / "credentials"))
    if section not in config and profile not in secrets:
        return None
    found: dict[str, str] = {}
    for parser, name in ((config, section), (secrets, profile)):
        if name in parser:
            found.update(parser[name])
    return found


def configured_region(environ: Mapping[str, str], home: Path) -> str | None:
    """Return the region that environment or profile names."""
    named = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return named or (read_profile(environ, home) or {}).get("region")


def _read_ini(path: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError) as exc:
        raise NoCredentials(f"can't read {path}: {exc}") from exc
    return parser


def _read_secret_file(path: str, variable: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise NoCredentials(f"can't read the file that {variable} names: {exc}") from exc


def _may_be_told_a_token(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or host in CONTAINER_HOSTS or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require(answer: HttpAnswer | None, refusal: str) -> bytes:
    if answer is None:
        raise StoreUnavailable(f"{refusal}: no answer in time, or one of more than {ANSWER_MAX_BYTES} bytes")
    if answer.status >= 500:
        raise StoreUnavailable(f"{refusal}: status {answer.status}")
    if answer.status != 200:
        raise AccessDenied(f"{refusal}: status {answer.status}: {answer.body[:300].decode(errors='replace')}")
    return answer.body


def _word(body: bytes) -> str | None:
    found = WORD.fullmatch(body.decode(errors="replace").strip())
    return None if found is None else found[0]


def _credentials_of_json(body: bytes) -> S3Credentials:
    try:
        fields: dict[str, Any] = json.loads(body)
        return S3Credentials(
            access_key_id=_text(fields["AccessKeyId"]),
            secret_access_key=_text(fields["SecretAccessKey"]),
            session_token=_text(fields["Token"]) if fields.get("Token") else None,
            expires_at_seconds=_seconds(fields["Expiration"]) if fields.get("Expiration") else None,
        )
    except (KeyError, TypeError, ValueError, RecursionError) as exc:
        raise AccessDenied(f"not credentials: {type(exc).__name__} {exc}") from exc


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in place of a string")
    return value


def _credentials_of_sts(body: bytes) -> S3Credentials:
    try:
        root = ElementTree.fromstring(body)
        fields = {
            element.tag.rpartition("}")[2]: element.text or "" for element in root.iterfind(".//{*}Credentials/*")
        }
        return S3Credentials(
            access_key_id=fields["AccessKeyId"],
            secret_access_key=fields["SecretAccessKey"],
            session_token=fields["SessionToken"],
            expires_at_seconds=_seconds(fields["Expiration"]),
        )
    except (KeyError, ValueError, ElementTree.ParseError) as exc:
        raise AccessDenied(f"STS sent no credentials: {type(exc).__name__} {exc}") from exc


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()
