"""A start imports nothing that it can do without: two thirds of its time are imports."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = "import json, sys, kafscale.cli.serve, kafscale.serving; print(json.dumps(sorted(sys.modules)))"
# Packages that only some brokers or later requests need.
LATER = {"httpx", "rich", "cryptography", "scramp", "joserfc", "cramjam", "re2", "pyspark"}


def imported() -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_a_start_imports_no_optional_packages_and_no_apis_that_clients_ask_for_later() -> None:
    modules = imported()
    assert "kafscale.broker" in modules
    assert not LATER & {each.partition(".")[0] for each in modules}
    assert "kafscale.api.records.fetch" in modules
    assert not {"kafscale.api.topics.create_topics", "kafscale.wire.messages.topics"} & modules
