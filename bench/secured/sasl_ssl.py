"""One certificate and one user for all brokers of a run, and what each kind of client is told of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from kafscale.config import SaslMechanism, SecurityProtocol
from kafscale.login.security import ClientSecurity, client_security
from kafscale.testing.certificates import make_authority

PROTOCOL, MECHANISM = SecurityProtocol.SASL_SSL, SaslMechanism.SCRAM_SHA_512
TLS_VERSION = "TLSv1.3"
CIPHER = "TLS_AES_256_GCM_SHA384"  # what OpenSSL and Java have first; `bench.secured.sockets` holds brokers to it
SCRAM_ITERATIONS = 4096  # the least, and Kafka's default; it counts for a login alone
USER = "bench"
PASSWORD = "bench-secret"
_LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@attrs.frozen(kw_only=True)
class SaslSsl:
    """Certificates and users of the brokers, in the files of a directory, and what clients trust and log in with."""

    directory: Path
    ca_file: Path
    certificate_file: Path
    key_file: Path

    @property
    def keystore_file(self) -> Path:
        """Key and certificate in one file, as Java takes them."""
        return self.directory / "keystore.pem"

    @property
    def password_file(self) -> Path:
        return self.directory / "password"

    @property
    def properties_file(self) -> Path:
        """The file of `properties`, for Kafka's own tools."""
        return self.directory / "client.properties"

    @property
    def jaas(self) -> str:
        """Return the login, as Java has it."""
        return f'{_LOGIN_MODULE} required username="{USER}" password="{PASSWORD}";'

    @property
    def properties(self) -> Mapping[str, str]:
        """Settings of clients by Kafka's names: Java's, and those that `kafscale.client` reads."""
        return {
            "security.protocol": PROTOCOL.value,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            "ssl.enabled.protocols": TLS_VERSION,
            "sasl.mechanism": MECHANISM.value,
            "sasl.jaas.config": self.jaas,
        }

    @property
    def librdkafka(self) -> Mapping[str, str]:
        """The same for librdkafka, which agrees on the newest version of TLS by itself."""
        return {
            "security.protocol": PROTOCOL.value,
            "ssl.ca.location": str(self.ca_file),
            "sasl.mechanism": MECHANISM.value,
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }

    def client(self) -> ClientSecurity:
        """Return what a client of ours is secured by."""
        return client_security(self.properties)

    @property
    def serve_options(self) -> Sequence[str]:
        """Return how `kafscale serve` has the one listener that it needs."""
        return [
            *("--listen", f"{PROTOCOL}=127.0.0.1:0", "--ssl-min-version", TLS_VERSION),
            *("--ssl-certificate-file", str(self.certificate_file), "--ssl-key-file", str(self.key_file)),
            *("--sasl-mechanisms", MECHANISM.value),
        ]

    @property
    def add_user_options(self) -> Sequence[str]:
        """Return what follows `kafscale users add`, but for the place of the metadata."""
        login = ("--password-file", str(self.password_file), "--mechanism", MECHANISM.value)
        return [USER, *login, "--iterations", str(SCRAM_ITERATIONS)]

    @property
    def kafka_settings(self) -> Mapping[str, str]:
        """Return what Kafka's server.properties have beside the listener."""
        prefix = f"listener.name.{PROTOCOL.lower()}.{MECHANISM.lower()}"
        return {
            "inter.broker.listener.name": PROTOCOL.value,
            "sasl.mechanism.inter.broker.protocol": MECHANISM.value,
            "sasl.enabled.mechanisms": MECHANISM.value,
            f"{prefix}.sasl.jaas.config": self.jaas,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore_file),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            "ssl.enabled.protocols": TLS_VERSION,
            "ssl.cipher.suites": CIPHER,
        }

    @property
    def kafka_format_options(self) -> Sequence[str]:
        """Return what has `kafka-storage format` add the user."""
        known = f"name={USER},password={PASSWORD},iterations={SCRAM_ITERATIONS}"
        return ["--add-scram", f"{MECHANISM}=[{known}]"]


@contextmanager
def sasl_ssl() -> Iterator[SaslSsl]:
    """Make certificate and user for the block; their files are removed at its end."""
    with TemporaryDirectory(prefix="kafscale-bench-tls-") as place:
        directory = Path(place)
        authority = make_authority(directory)
        certificate = authority.issue("broker")
        made = SaslSsl(
            directory=directory,
            ca_file=authority.ca_file,
            certificate_file=certificate.certificate_file,
            key_file=certificate.key_file,
        )
        made.keystore_file.write_text(made.key_file.read_text() + made.certificate_file.read_text())
        made.password_file.write_text(f"{PASSWORD}\n")
        made.properties_file.write_text("".join(f"{name}={value}\n" for name, value in made.properties.items()))
        yield made
