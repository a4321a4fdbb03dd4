"""Servers of Iceberg's catalogs, as processes for tests: Postgres where it is installed, and servers in Java."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.devtools.external.s3_processes import free_port

PROGRAMS = ("initdb", "pg_ctl")
SUPERUSER = 0
PLAIN_USER = "nobody"  # runs Postgres where tests are run by root, as whom it refuses to


@attrs.frozen(kw_only=True)
class PostgresProcess:
    """A server that runs, with one user, who has a password, and one database, which is empty."""

    port: int
    user: str = "iceberg"
    password: str = "secret-of-the-test"
    database: str = "postgres"


def has_postgres() -> bool:
    """Tell whether its programs are on the PATH."""
    return all(shutil.which(program) for program in PROGRAMS)


@contextmanager
def postgres_server() -> Iterator[PostgresProcess]:
    """Postgres on a free port of loopback, with its data in a temporary directory."""
    server = PostgresProcess(port=free_port())
    with tempfile.TemporaryDirectory() as home:
        data, password = f"{home}/data", Path(home, "password")
        password.write_text(server.password)
        if os.getuid() == SUPERUSER:
            shutil.chown(home, PLAIN_USER)
            shutil.chown(password, PLAIN_USER)
        options = f"-h 127.0.0.1 -p {server.port} -k {home} -c fsync=off"
        _postgres("initdb", "-D", data, "-U", server.user, "-A", "scram-sha-256", f"--pwfile={password}", "--no-sync")
        _postgres("pg_ctl", "start", "--wait", "-D", data, "-l", f"{home}/log", "-o", options)
        try:
            yield server
        finally:
            _postgres("pg_ctl", "stop", "--wait", "-D", data, "-m", "immediate")


def _postgres(*command: str) -> None:
    """Raises RuntimeError with what it said."""
    user = PLAIN_USER if os.getuid() == SUPERUSER else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, user=user, cwd="/")
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")


@contextmanager
def java_server(program: Path, jars: Sequence[str], properties: Mapping[str, str], **environ: str) -> Iterator[str]:
    """A Java program of one file that serves what these properties say and prints where; yields its URL."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(jars), str(program)]
    command += [f"{name}={value}" for name, value in properties.items()]
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as errors:
        # Derby, which a Hive metastore brings, writes a log where it is started.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=directory, env={**os.environ, **environ}
        )
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                errors.seek(0)
                raise RuntimeError(f"{program.name} did not start: {errors.read()[-2000:].decode(errors='replace')}")
            yield url
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
