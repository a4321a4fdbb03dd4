"""Users, tokens, and a broker process where they log in, for tests of SASL."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from scramp import ScramClient

from kafscale.config import SaslMechanism, SecurityProtocol
from kafscale.security.verifiers import ITERATIONS_LEAST, Decoys, ScramVerifier, make_verifier
from tests.devtools.processes.process import KAFSCALE, BrokerProcess
from tests.devtools.processes.tls import TlsBroker, tls_broker

SCRAMS = (SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512)
SALT = b"a salt of some bytes"
SECRET = b"what decoys are made of"
ALICE, PASSWORD = "alice", "alice's secret"


@functools.cache
def verifier_of(mechanism: SaslMechanism, password: str) -> ScramVerifier:
    return make_verifier(mechanism, password, iterations=ITERATIONS_LEAST, salt=SALT)


@attrs.define(eq=False)
class Users:
    passwords: dict[str, str] = attrs.field(factory=lambda: {ALICE: PASSWORD})
    usual_mechanism: SaslMechanism = SaslMechanism.SCRAM_SHA_512

    def verifier(self, mechanism: SaslMechanism, user: str) -> ScramVerifier | None:
        password = self.passwords.get(user)
        return None if password is None else verifier_of(mechanism, password)

    def decoy(self, mechanism: SaslMechanism, user: str) -> ScramVerifier:
        return Decoys(SECRET).make(mechanism, user)


def scram_client(mechanism: SaslMechanism, user: str = ALICE, password: str = PASSWORD) -> ScramClient:
    return ScramClient([mechanism.value], user, password)


def plain_message(user: str = ALICE, password: str = PASSWORD, authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{user}\0{password}".encode()


def oauth_message(token: str, authorization_id: str = "") -> bytes:
    authorization = f"a={authorization_id}" if authorization_id else ""
    return f"n,{authorization},\x01auth=Bearer {token}\x01\x01".encode()


def signing_key(kind: str = "EC", key_id: str = "one") -> RSAKey | ECKey:
    """Return a private key, always the same within a process."""
    return _signing_key(kind, key_id)


@functools.cache
def _signing_key(kind: str, key_id: str) -> RSAKey | ECKey:
    parameters: dict[str, object] = {"kid": key_id, "use": "sig"}
    if kind == "RSA":
        return RSAKey.generate_key(2048, parameters)  # type: ignore[arg-type]
    return ECKey.generate_key("P-256", parameters)  # type: ignore[arg-type]


def key_set(*keys: RSAKey | ECKey) -> dict[str, object]:
    """Return the public parts, as an issuer publishes them."""
    return {"keys": KeySet(list(keys)).as_dict(private=False)["keys"]}


def write_key_set(path: Path, *keys: RSAKey | ECKey) -> str:
    path.write_text(json.dumps(key_set(*keys)))
    return path.as_uri()


def sign(
    claims: dict[str, object] | None = None,
    *,
    key: RSAKey | ECKey | None = None,
    lifetime_seconds: float = 300.0,
    **header: object,
) -> str:
    """Sign a token for alice, or with these claims; a claim of None is left out."""
    now = time.time()
    key = key or signing_key()
    algorithm = "RS256" if isinstance(key, RSAKey) else "ES256"
    given = {"sub": ALICE, "iat": int(now), "exp": int(now + lifetime_seconds), **(claims or {})}
    given = {name: value for name, value in given.items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": key.kid, **header}, given, key)


@attrs.frozen(kw_only=True)
class SaslBroker:
    """A broker with a listener of each protocol; `process.bootstrap` is that without TLS and SASL."""

    tls: TlsBroker

    @property
    def process(self) -> BrokerProcess:
        return self.tls.process

    @property
    def ca_file(self) -> Path:
        return self.tls.authority.ca_file

    def bootstrap(self, protocol: SecurityProtocol) -> str:
        return self.process.further_listeners[_FURTHER.index(protocol)]


_FURTHER = (SecurityProtocol.SSL, SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)  # the first by tls_broker


@contextmanager
def sasl_broker(*options: str, program: Sequence[str] = KAFSCALE) -> Iterator[SaslBroker]:
    """Run a broker with all mechanisms for the block; it checks tokens by `signing_key`."""
    with TemporaryDirectory(prefix="kafscale-sasl-") as directory:
        url = write_key_set(Path(directory) / "keys.json", signing_key())
        listeners = [option for protocol in _FURTHER[1:] for option in ("--listen", f"{protocol}=127.0.0.1:0")]
        mechanisms = [option for mechanism in SaslMechanism for option in ("--sasl-mechanisms", mechanism.value)]
        tokens = ("--sasl-oauthbearer-jwks-endpoint-url", url, "--sasl-oauthbearer-clock-skew", "0")
        with tls_broker(*listeners, *mechanisms, *tokens, *options, program=program) as running:
            yield SaslBroker(tls=running)
