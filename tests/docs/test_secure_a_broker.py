"""The page on securing a broker can be followed: its commands are run as they are written, on free ports."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from kafscale.testing.certificates import CertificateFiles
from tests.devtools.processes.tls import verify_strictly
from tests.docs.blocks import blocks_of

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "secure-a-broker.md").read_text()
_READY = re.compile(r"kafscale is ready: kafka 127.0.0.1:(\d+) admin 127.0.0.1:(\d+)")


def run(command: str, directory: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euc", command], cwd=directory, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def certificate_of(name: str, directory: Path) -> CertificateFiles:
    return CertificateFiles(certificate_file=directory / f"{name}.pem", key_file=directory / f"{name}-key.pem")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page's commands are openssl's")
def test_certificates_made_by_the_page_are_valid_where_verified_strictly(tmp_path: Path) -> None:
    """Clients verify the broker's as Python 3.13 does by default, and a broker may verify theirs so."""
    language, text = blocks_of(PAGE)[0]
    assert language == "sh"
    run(text, tmp_path, dict(os.environ))
    server = certificate_of("broker", tmp_path).server_context()
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(tmp_path / "ca.pem")
    alice = certificate_of("alice", tmp_path)
    verify_strictly(alice.client_context(tmp_path / "ca.pem", shown=alice), server)


@pytest.mark.faults
@pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("curl") is None,
    reason="the page's commands are openssl's and curl's",
)
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAFSCALE_")}
    environ = {**environ, "PATH": programs, "KAFSCALE_ADMIN_LISTEN": "127.0.0.1:0"}
    process: subprocess.Popen[str] | None = None
    ports: dict[str, str] = {}
    printed = ""
    shown = 0
    try:
        for language, text in blocks_of(PAGE):
            for written, real in ports.items():
                text = text.replace(f"localhost:{written}", f"localhost:{real}")
            if language == "sh":
                printed = run(text, tmp_path, environ)
            elif language == "properties":
                (tmp_path / text.split()[1]).write_text(text)
            elif language == "text":
                shown += 1
                lines = iter(printed.splitlines())
                for line in text.splitlines():
                    assert any(each.startswith(line) for each in lines), f"{line} is not in {printed}"
            elif language == "terminal":
                process = subprocess.Popen(
                    ["bash", "-c", f"exec {text}".replace("127.0.0.1:9093", "127.0.0.1:0")],
                    cwd=tmp_path,
                    env=environ,
                    text=True,
                    stdout=subprocess.PIPE,
                )
                assert process.stdout is not None
                ready = _READY.match(process.stdout.readline())
                assert ready is not None
                ports = {"9093": ready[1], "9644": ready[2]}
    finally:
        if process is not None:
            with process:
                process.terminate()
    assert shown == 2
    assert process is not None
    assert process.returncode == 0
