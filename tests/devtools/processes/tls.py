"""A broker process with a TLS listener, and settings of clients for it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from kafscale.config import Address
from kafscale.testing.certificates import Authority, CertificateFiles, CertificateKey, make_authority
from tests.devtools.processes.process import KAFSCALE, BrokerProcess, broker_process


@attrs.frozen(kw_only=True)
class TlsBroker:
    """`process` has a listener without TLS too. `certificate` are the files of its start."""

    process: BrokerProcess
    authority: Authority
    certificate: CertificateFiles

    @property
    def bootstrap(self) -> str:
        return self.process.further_listeners[0]

    @property
    def address(self) -> Address:
        return Address.parse(self.bootstrap.partition(",")[0])

    def librdkafka(self, shown: CertificateFiles | None = None) -> dict[str, str]:
        """Return librdkafka's settings, with those of a client's certificate."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.ca_file),
        }
        if shown is not None:
            settings["ssl.certificate.location"] = str(shown.certificate_file)
            settings["ssl.key.location"] = str(shown.key_file)
        return settings


@contextmanager
def tls_broker(
    *options: str,
    client_auth: str = "requested",
    program: Sequence[str] = KAFSCALE,
    key: CertificateKey | None = None,
) -> Iterator[TlsBroker]:
    """Run a broker for the block, with this key or a new one."""
    with TemporaryDirectory(prefix="kafscale-tls-") as directory:
        authority = make_authority(Path(directory))
        certificate = authority.issue("broker", key=key)
        flags = (
            *("--listen", "SSL=127.0.0.1:0", "--ssl-client-auth", client_auth),
            *("--ssl-certificate-file", str(certificate.certificate_file), "--ssl-key-file", str(certificate.key_file)),
            *("--ssl-client-ca-file", str(authority.ca_file)),
        )
        with broker_process(*flags, *options, program=program) as process:
            yield TlsBroker(process=process, authority=authority, certificate=certificate)


def verify_strictly(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Do a handshake in memory in which both verify as strictly as Python 3.13 does by default.

    Raises ssl.SSLCertVerificationError.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    for context in (client, server):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    left = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while left:
        for side in list(left):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
                left.remove(side)
