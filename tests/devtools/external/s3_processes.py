"""S3 servers that are not ours, as processes for tests: moto's, and MinIO where it is installed.

moto (5.2) closes each connection after its reply and accepts any signature and checksum: it shows less than it seems.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence

import attrs

from kafscale.store.s3.sigv4 import S3Credentials

START_TIMEOUT_SECONDS = 120.0  # it takes one where nothing else runs


@attrs.frozen(kw_only=True)
class S3Process:
    endpoint: str
    credentials: S3Credentials
    kms_key: str = ""


@contextlib.contextmanager
def minio_server(*, kms_key: str = "") -> Iterator[S3Process]:
    """Run MinIO on a free port, with its data in a temporary directory; `minio` must be on the PATH.

    `kms_key` names the only key of its key service; by default it has none.
    """
    credentials = S3Credentials(access_key_id="minio-user", secret_access_key="minio-password")
    port = free_port()
    environ = {"MINIO_ROOT_USER": credentials.access_key_id, "MINIO_ROOT_PASSWORD": credentials.secret_access_key}
    if kms_key:
        environ["MINIO_KMS_SECRET_KEY"] = f"{kms_key}:{base64.b64encode(secrets.token_bytes(32)).decode()}"
    with tempfile.TemporaryDirectory() as directory:
        command = ["minio", "server", "--quiet", "--address", f"127.0.0.1:{port}", directory]
        with _running(command, environ, f"http://127.0.0.1:{port}/"):
            yield S3Process(endpoint=f"http://127.0.0.1:{port}", credentials=credentials, kms_key=kms_key)


@contextlib.contextmanager
def moto_server() -> Iterator[S3Process]:
    """moto's server on a free port; the `moto[server]` package must be installed."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with _running(command, {}, f"http://127.0.0.1:{port}/"):
        credentials = S3Credentials(access_key_id="any", secret_access_key="any")
        yield S3Process(endpoint=f"http://127.0.0.1:{port}", credentials=credentials)


def s3_server() -> contextlib.AbstractContextManager[S3Process]:
    """MinIO where it is on the PATH, or moto's."""
    return minio_server() if shutil.which("minio") else moto_server()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _running(command: Sequence[str], environ: Mapping[str, str], url: str) -> Iterator[None]:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env={**os.environ, **environ}, stdout=output, stderr=output)
        try:
            if not _becomes_healthy(process, url):
                output.seek(0)
                raise RuntimeError(f"{command[0]} did not start: {output.read()[-2000:].decode(errors='replace')}")
            yield
        finally:
            process.kill()
            process.wait()


def _becomes_healthy(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until it serves: MinIO listens some time before that, and answers 503."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(url, timeout=1):
                return True
        except urllib.error.HTTPError as exc:
            exc.close()
            if exc.code < 500:
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False
