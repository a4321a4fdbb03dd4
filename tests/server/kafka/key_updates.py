"""Records of TLS 1.3 made by hand, of what Python's ssl can't be asked to send: messages that ask for new keys.

The keys come from the log of secrets that OpenSSL writes (SSLKEYLOGFILE); RFC 8446 says how, 7.1 to 7.3.
"""

from __future__ import annotations

from pathlib import Path

import attrs
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

CIPHER = "TLS_AES_256_GCM_SHA384"
SECRET_BYTES, KEY_BYTES, IV_BYTES, TAG_BYTES = 48, 32, 12, 16
HANDSHAKE, APPLICATION_DATA = b"\x16", b"\x17"
UPDATE_REQUESTED = b"\x18\x00\x00\x01\x01"  # KeyUpdate, which wants the other side's keys to change too


def _expanded(secret: bytes, label: bytes, length: int) -> bytes:
    info = length.to_bytes(2, "big") + bytes([len(label) + 6]) + b"tls13 " + label + b"\0"
    return HKDFExpand(algorithm=SHA384(), length=length, info=info).derive(secret)


@attrs.define
class ClientRecords:
    """Records of a client after its handshake, made in its place: it must not have sent anything by itself."""

    secret: bytes
    sent_count: int = 0

    @classmethod
    def of(cls, key_log: Path) -> ClientRecords:
        """Read the secret of the one connection in the log, whose cipher is CIPHER."""
        [line] = [line for line in key_log.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")]
        secret = bytes.fromhex(line.split()[2])
        assert len(secret) == SECRET_BYTES
        return cls(secret)

    def record(self, content: bytes, kind: bytes = APPLICATION_DATA) -> bytes:
        """Return the next record."""
        iv = int.from_bytes(_expanded(self.secret, b"iv", IV_BYTES), "big")
        nonce = (iv ^ self.sent_count).to_bytes(IV_BYTES, "big")
        head = b"\x17\x03\x03" + (len(content) + 1 + TAG_BYTES).to_bytes(2, "big")
        self.sent_count += 1
        return head + AESGCM(_expanded(self.secret, b"key", KEY_BYTES)).encrypt(nonce, content + kind, head)

    def key_update(self) -> bytes:
        """Return the record that asks for new keys; the next one is of new keys itself."""
        record = self.record(UPDATE_REQUESTED, HANDSHAKE)
        self.secret, self.sent_count = _expanded(self.secret, b"traffic upd", SECRET_BYTES), 0
        return record
