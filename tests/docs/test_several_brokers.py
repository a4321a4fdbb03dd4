"""The page on several brokers can be followed: its commands are run as they are written, one after the other.

Machines are processes, which listen on free ports of the loopback; places of the page stand for directories. What the
page says of brokers that stop, die and come back between its commands is done here.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from kafscale.login.properties import read_properties
from kafscale.login.security import client_security
from kafscale.testing.certificates import make_authority
from tests.devtools.external.clients import wait_until
from tests.devtools.external.s3_processes import free_port
from tests.docs.blocks import blocks_of

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "several-brokers.md").read_text()
SECTIONS = PAGE.split("\n## Use every core of a machine\n")[0]  # three machines have a test of their own
PROGRAMS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
TIMEOUT_SECONDS = 120.0
FIRST = [f"first {number}" for number in range(60)]
LATER = [f"later {number}" for number in range(60)]


@attrs.define(eq=False)
class Site:
    """What stands for the machines of the page: `places` is what stands for an address or a path of it."""

    directory: Path
    environ: Mapping[str, str]
    places: Mapping[str, str]
    serve: dict[int, str] = attrs.field(factory=dict, init=False)  # the command of each broker
    running: dict[int, subprocess.Popen[str]] = attrs.field(factory=dict, init=False)

    def here(self, text: str) -> str:
        for written, place in self.places.items():
            text = text.replace(written, place)
        return text

    def run(self, command: str, lines: Iterable[str] = ()) -> str:
        done = subprocess.run(
            ["bash", "-euc", self.here(command)],
            env=self.environ,
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        logs = "".join(log.read_text()[-3000:] for log in self.directory.glob("*.log"))
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}\n{logs}"
        return done.stdout

    def start(self, broker_id: int) -> None:
        command = self.serve[broker_id]
        with (self.directory / f"{broker_id}.log").open("ab") as log:
            process = subprocess.Popen(
                shlex.split(self.here(command)), env=self.environ, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.running[broker_id] = process
        assert process.stdout is not None
        assert process.stdout.readline().startswith("kafscale is ready"), command

    def stop(self, broker_id: int) -> None:
        with self.running.pop(broker_id) as process:
            process.terminate()
            assert process.wait(TIMEOUT_SECONDS) == 0

    def kill(self, broker_id: int) -> None:
        with self.running.pop(broker_id) as process:
            process.kill()

    def state_of(self, broker_id: int) -> str:
        rows = json.loads(self.run("kafscale brokers list --json"))
        return next((row["state"] for row in rows if row["broker"] == broker_id), "unknown")

    def led(self) -> Counter[int]:
        """Return how many partitions each broker leads."""
        return Counter(load["leader"] for load in json.loads(self.run("kafscale partitions list orders --json")))

    def produce(self, values: Sequence[str]) -> None:
        """Write records to all partitions, as each has a key of its own."""
        self.run("kafscale produce orders --key-separator :", (f"{value}:{value}" for value in values))

    def read(self) -> Sequence[str]:
        return sorted(self.run("kafscale consume orders --from-beginning").splitlines())

    def take_away(self, broker_id: int) -> None:
        """Have a broker drained, stopped and forgotten."""
        self.run(f"kafscale brokers drain {broker_id}")
        self.stop(broker_id)
        self.run(f"kafscale brokers remove {broker_id}")


def before(command: str, site: Site) -> None:
    """Do what has happened by the time of a command, as the page says."""
    if command.startswith("kafscale brokers remove") and 2 in site.running:
        site.stop(2)
    elif command.startswith("kafscale brokers replace"):
        site.produce(LATER)
        site.kill(2)
        wait_until(lambda: site.state_of(2) == "away", "it is known that broker 2 is lost", seconds=TIMEOUT_SECONDS)
    elif command.startswith("kafscale brokers unshare"):
        site.take_away(2)
        site.stop(1)


def behind(command: str, site: Site) -> None:
    """Check what the page says of a command, and have a broker come back that was only away for it."""
    match command.split()[1:]:
        case ["brokers", "drain", "2"] | ["brokers", "replace", "2", *_]:
            assert site.led() == {1: 6}
        case ["brokers", "remove", "2"]:
            assert site.state_of(2) == "unknown"
            site.start(2)
        case ["partitions", "move", "orders", *indexes, "--to", "2"]:
            found = json.loads(site.run("kafscale partitions list orders --json"))
            assert {each["partition"] for each in found if each["leader"] == 2} >= {int(index) for index in indexes}
        case ["partitions", "balance", "orders"]:
            assert site.led() == {1: 3, 2: 3}
        case ["brokers", "unshare", *_]:
            site.serve[1] = site.serve[1].replace(" --several-brokers", "")
            site.start(1)
            assert site.led() == {1: 6}


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    addresses = {f"10.0.0.{number}:9092": f"127.0.0.1:{free_port()}" for number in (1, 2)}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAFSCALE_")} | {
        "PATH": PROGRAMS,
        "KAFSCALE_ADMIN_LISTEN": "127.0.0.1:0",
        "KAFSCALE_BOOTSTRAP": addresses["10.0.0.1:9092"],
        "KAFSCALE_FLUSH_INTERVAL": "1h",  # only what moves is flushed
        "KAFSCALE_AUTHORIZER": "acl",
        "KAFSCALE_SUPER_USER": "User:ANONYMOUS",
    }
    places = {"s3://events": f"file:{tmp_path / 'bucket'}", "/var/lib": str(tmp_path), "/etc/kafscale": str(tmp_path)}
    site = Site(tmp_path, environ, {**addresses, **places})
    with ExitStack() as stack:
        stack.callback(lambda: [site.kill(each) for each in [*site.running]])
        for language, text in blocks_of(SECTIONS):
            if language == "terminal":
                site.serve |= dict(enumerate(text.splitlines(), 1))
                for broker_id in site.serve:
                    site.start(broker_id)
                site.run("kafscale topics create orders --partitions 6")
                site.produce(FIRST)
            elif language == "properties":
                make_authority(tmp_path)
                config = tmp_path / "broker.properties"
                config.write_text(site.here(text))
                client_security(read_properties(config))
            else:
                assert language == "sh", text
                for command in text.splitlines():
                    before(command, site)
                    site.run(command)
                    behind(command, site)
        found = site.read()
        assert set(FIRST) < set(found) < {*FIRST, *LATER}  # what broker 2 had not flushed is accepted as lost
        assert len(found) == len(set(found))
        kept = [
            batch["records"]
            for log in tmp_path.glob("kafscale-2/wal/superseded-wal-*.log")
            for batch in json.loads(site.run(f"kafscale inspect --batches --json {log}"))["rows"]
        ]
        assert sum(kept) == len({*FIRST, *LATER} - set(found))
