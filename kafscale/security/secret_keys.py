"""Keys that encrypt secrets in the metadata: AES-256-GCM, by the library cryptography.

A key file has a key on each line, as 64 hexadecimal digits; lines with # are comments. The first key encrypts, all of
them decrypt: to change the key, put a new one in front, and remove the old one when every user was added anew. A value
is bound to its place, so it can't be moved to another's.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

import attrs

from kafscale.errors import DamagedObject, StartupError

KEY_FILE_NAME = "secret.key"  # in the data directory, unless the operator has named another
KEY_BYTES = 32
NONCE_BYTES = 12
FILE_MAX_BYTES = 64 << 10
_LINE = re.compile(r"[0-9a-fA-F]{64}")


@attrs.frozen(kw_only=True)
class Sealed:
    key_id: str
    nonce: bytes
    data: bytes


@attrs.frozen
class SecretKeys:
    """The keys of a file; at least one."""

    _keys: Sequence[bytes] = attrs.field(repr=False)

    @property
    def for_decoys(self) -> bytes:
        return hashlib.sha256(b"kafscale decoys " + self._keys[0]).digest()

    def seal(self, place: str, data: bytes) -> Sealed:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only now: it takes a start 20 ms

        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = AESGCM(self._keys[0]).encrypt(nonce, data, place.encode())
        return Sealed(key_id=_key_id(self._keys[0]), nonce=nonce, data=sealed)

    def open(self, place: str, sealed: Sealed) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for key in self._keys:
            if _key_id(key) == sealed.key_id:
                try:
                    return AESGCM(key).decrypt(sealed.nonce, sealed.data, place.encode())
                except (InvalidTag, ValueError) as exc:
                    raise DamagedObject(f"what the metadata has at {place} was not encrypted for it") from exc
        raise DamagedObject(f"what the metadata has at {place} was encrypted by another key ({sealed.key_id})")


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"kafscale key id " + key).hexdigest()[:16]


def read_key_file(path: Path) -> SecretKeys | None:
    """Read a key file; None if it does not exist. Raises StartupError."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MAX_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StartupError(f"--secret-key-file {path} can't be read: {exc.strerror}") from exc
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines or not all(_LINE.fullmatch(line) for line in lines):
        raise StartupError(
            f"--secret-key-file {path} is not a key file; it has a key on each line, as 64 hexadecimal digits, such as "
            "`openssl rand -hex 32` makes"
        )
    return SecretKeys([bytes.fromhex(line) for line in lines])


def make_key_file(path: Path) -> SecretKeys:
    """Make a key file for this user alone, atomically. Raises StartupError, also if it exists."""
    key = secrets.token_bytes(KEY_BYTES)
    written = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(key.hex().encode() + b"\n")
                file.flush()
                os.fsync(descriptor)
            os.link(written, path)
        finally:
            written.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except OSError as exc:
        raise StartupError(f"the key file {path} can't be made: {exc.strerror}") from exc
    return SecretKeys([key])


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
