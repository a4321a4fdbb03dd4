"""Values of options other than numbers: addresses, listeners, store URLs and closed sets of words.

Each has `parse(text)`, which raises ValueError with a message for the user, and a `str()` that parses back to it.
"""

from __future__ import annotations

import enum
import re
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

import attrs

from kafscale.config.units import format_size, parse_size

DEFAULT_LISTENER_NAME = "PLAINTEXT"
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})

_LISTENER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.%a-z]{2,64}")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_KMS_KEY = re.compile(r"[!-~]{1,2048}")  # a name, an id or an ARN, fit for a header

_SCHEME = re.compile(r"(?:([A-Za-z][A-Za-z0-9+._-]*)://)?(.*?)(/?)", re.DOTALL)
_SCHEME_PORTS = {"http": 80, "https": 443}
_TLS_SCHEMES = frozenset({"https", "ssl", "sasl_ssl"})  # of URLs, and Kafka's security protocols
_PLAIN_SCHEMES = frozenset({"http", "plaintext", "sasl_plaintext"})
_PASSWORD = re.compile(r"//[^/]*@")
_NEXT_PRINCIPAL = re.compile(r"[,;]\s*(?=[A-Za-z]+:)")

ADDRESS_HELP = "HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9092 or [::1]:9092"
LISTENER_HELP = f"[NAME=]{ADDRESS_HELP}"
IP_CONNECTIONS_HELP = "IP:NUMBER, with an IPv6 address in brackets"
LISTENER_PROTOCOL_HELP = "NAME=PROTOCOL, where PROTOCOL is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
STORE_HELP = "file:PATH, s3://BUCKET, s3://BUCKET/PREFIX, memory: or memory:SIZE"
ENCRYPTION_HELP = "AES256, or aws:kms:KEY with the name, id or ARN of a key"


class Durability(enum.StrEnum):
    """The condition for acknowledging a produce; see docs/discussion/durability.md."""

    WAL = "wal"
    S3_WAL = "s3-wal"
    SEGMENT = "segment"


class GroupAssignor(enum.StrEnum):
    """Assignors of groups whose assignments the broker computes."""

    UNIFORM = "uniform"
    RANGE = "range"


class GroupMigrationPolicy(enum.StrEnum):
    """The allowed changes of protocol of a group with members."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"


class SecurityProtocol(enum.StrEnum):
    """The security of a listener: with or without TLS and SASL (Kafka: security.protocol)."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class SslClientAuth(enum.StrEnum):
    """The need for a client certificate on TLS listeners (Kafka: ssl.client.auth)."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class SslVersion(enum.StrEnum):
    TLS_1_2 = "TLSv1.2"
    TLS_1_3 = "TLSv1.3"


class SaslMechanism(enum.StrEnum):
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    PLAIN = "PLAIN"
    OAUTHBEARER = "OAUTHBEARER"


class LogLevel(enum.StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class AuthorizerKind(enum.StrEnum):
    NONE = "none"
    ACL = "acl"


class LogFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


def split_list(text: str) -> list[str]:
    """Return the values of a list separated by commas; a text without values is one empty value."""
    return [item.strip() for item in text.split(",") if item.strip()] or [""]


def split_principals(text: str) -> list[str]:
    """Return the principals of a list. Commas separate only if TYPE: follows: User:CN=broker,O=example is one."""
    return [item.strip() for item in _NEXT_PRINCIPAL.split(text) if item.strip()] or [""]


@attrs.frozen
class Address:
    """A host and a TCP port, 0 for a free one. `scheme` is that of the URL, if it was one; comparisons ignore it."""

    host: str
    port: int
    scheme: str = attrs.field(default="", eq=False, kw_only=True)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def wants_tls(self) -> bool | None:
        """Tell whether the scheme means TLS; None without a scheme that says so."""
        return True if self.scheme in _TLS_SCHEMES else False if self.scheme in _PLAIN_SCHEMES else None

    @classmethod
    def parse(cls, text: str, *, allows_tls: bool = False) -> Address:
        """Read `HOST:PORT` or `[IPV6]:PORT`, alone or as a URL without a path. Raises ValueError.

        With `allows_tls` the caller must check `wants_tls`; without it, a URL with TLS is refused.
        """
        scheme, rest, slash = _SCHEME.fullmatch(text.strip()).groups(default="")  # type: ignore[union-attr]
        host, colon, port = (rest if scheme else rest + slash).rpartition(":")
        if scheme.lower() in _SCHEME_PORTS and not colon:
            host, colon, port = rest, ":", str(_SCHEME_PORTS[scheme.lower()])
        bracketed = host.startswith("[") and host.endswith("]")
        host_ok = _IPV6.fullmatch(host[1:-1]) and ":" in host if bracketed else _HOST.fullmatch(host)
        port_ok = re.fullmatch(r"[0-9]{1,5}", port) and int(port) <= 65535
        if not (colon and host_ok and port_ok):
            raise ValueError(f"'{_PASSWORD.sub('//', text)}' is not an address; allowed: {ADDRESS_HELP}")
        address = cls(host[1:-1] if bracketed else host, int(port), scheme=scheme.lower())
        if address.wants_tls and not allows_tls:
            raise ValueError(f"'{text}' asks for TLS, which is not supported here; allowed: {ADDRESS_HELP}")
        return address


@attrs.frozen
class Listener:
    """A named address that clients connect to. The name connects `--listen` with `--advertised-listener`."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}={self.address}"

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    @property
    def is_wildcard(self) -> bool:
        """Tell whether it accepts on every interface, so that clients can't connect to its host."""
        return self.host in WILDCARD_HOSTS

    @classmethod
    def parse(cls, text: str) -> Listener:
        """Read `[NAME=]HOST:PORT`, or Kafka's `NAME://HOST:PORT`; without a name it is PLAINTEXT. Raises ValueError."""
        name, equals, address_text = text.strip().rpartition("=")
        try:
            address = Address.parse(address_text, allows_tls=True)
        except ValueError:
            raise ValueError(f"'{text}' is not a listener; allowed: {LISTENER_HELP}") from None
        if not equals:
            name = address_text.partition("://")[0] if address.scheme else DEFAULT_LISTENER_NAME
        if not _LISTENER_NAME.fullmatch(name) or name.lower() in _SCHEME_PORTS or (equals and address.scheme):
            raise ValueError(f"'{text}' is not a listener; allowed: {LISTENER_HELP}")
        return cls(name, address.host, address.port)


@attrs.frozen
class ListenerProtocol:
    name: str
    protocol: SecurityProtocol

    def __str__(self) -> str:
        return f"{self.name}={self.protocol}"

    @classmethod
    def parse(cls, text: str) -> ListenerProtocol:
        """Read `NAME=PROTOCOL`. Raises ValueError."""
        name, _, word = text.strip().partition("=")
        if not _LISTENER_NAME.fullmatch(name) or word not in SecurityProtocol.__members__:
            raise ValueError(f"'{text}' is not a listener's protocol; allowed: {LISTENER_PROTOCOL_HELP}")
        return cls(name, SecurityProtocol[word])


@attrs.frozen
class IpConnections:
    ip: str
    count: int

    def __str__(self) -> str:
        return str(Address(self.ip, self.count))

    @classmethod
    def parse(cls, text: str) -> IpConnections:
        """Read `IP:NUMBER` or `[IPV6]:NUMBER`. Raises ValueError."""
        host, _, count = text.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        try:
            ip = canonical_ip(host[1:-1] if bracketed else host)
        except ValueError:
            ip = ""
        if not ip or bracketed != (":" in host) or not re.fullmatch(r"[0-9]{1,9}", count):
            raise ValueError(f"'{text}' is not a number of connections; allowed: {IP_CONNECTIONS_HELP}")
        return cls(ip, int(count))


def canonical_ip(text: str) -> str:
    """Return the canonical form: without zones, and IPv4 mapped to IPv6 as IPv4, as in Java. Raises ValueError."""
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address)))
    return str(address)


def split_url(text: str) -> SplitResult:
    """Split a URL; the parts of an invalid one are empty."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


def has_host(url: SplitResult) -> bool:
    try:
        return bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def is_endpoint(url: SplitResult) -> bool:
    """Tell whether a URL may be a store's. HTTP libraries normalize `.`, `..` and `//`, which breaks the signature."""
    names = unquote(url.path).strip("/").split("/")
    is_short = names == [""] or not {"", ".", ".."} & set(names)
    return url.scheme in ("http", "https") and has_host(url) and is_short and not url.query and not url.fragment


@attrs.frozen(kw_only=True)
class StoreUrl:
    """Location of the log: `path` is for `file`, `bucket` and `prefix` for `s3`, `max_bytes` for `memory`."""

    scheme: Literal["file", "s3", "memory"]
    path: Path = Path()
    bucket: str = ""
    prefix: str = ""
    max_bytes: int | None = None

    def __str__(self) -> str:
        if self.scheme == "s3":
            return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"
        if self.scheme == "file":
            return f"file:{self.path}"
        return "memory:" if self.max_bytes is None else f"memory:{format_size(self.max_bytes)}"

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        text = text.strip()
        if text == "memory:":
            return cls(scheme="memory")
        if text.startswith("memory:"):
            return cls(scheme="memory", max_bytes=parse_size(text.removeprefix("memory:")))
        if text.startswith("file:") and (path := text.removeprefix("file:").removeprefix("//")):
            return cls(scheme="file", path=Path(path))
        bucket, _, prefix = text.removeprefix("s3://").partition("/")
        prefix = prefix.strip("/")
        if text.startswith("s3://") and _BUCKET.fullmatch(bucket) and "//" not in prefix:
            return cls(scheme="s3", bucket=bucket, prefix=prefix)
        if text.startswith("s3://") and not _BUCKET.fullmatch(bucket):
            raise ValueError(
                f"'{text}' is not a store: '{bucket}' is not the name of a bucket; allowed: s3://BUCKET or "
                "s3://BUCKET/PREFIX, where BUCKET has 3 to 63 letters, digits, dots, hyphens and underscores"
            )
        raise ValueError(f"'{text}' is not a store; allowed: {STORE_HELP}")


@attrs.frozen
class StoreEncryption:
    """Encryption by the store: with its own keys (AES256), or a key of its key service."""

    algorithm: Literal["AES256", "aws:kms"]
    key: str = ""

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.key}" if self.key else self.algorithm

    @classmethod
    def parse(cls, text: str) -> StoreEncryption:
        """Read `AES256` or `aws:kms:KEY`; the key may have colons, as an ARN does. Raises ValueError."""
        text = text.strip()
        if text == "AES256":
            return cls("AES256")
        key = text.removeprefix("aws:kms:")
        if key != text and _KMS_KEY.fullmatch(key):
            return cls("aws:kms", key)
        raise ValueError(f"'{text}' is not an encryption; allowed: {ENCRYPTION_HELP}")
