"""A start imports nothing that it can do without: two thirds of its time are imports."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = "import json, sys, kafscale.cli.serve, kafscale.serving; print(json.dumps(sorted(sys.modules)))"
# What only some brokers need, or only a later request does.
LATER = {"httpx", "rich", "cryptography", "scramp", "joserfc", "cramjam", "re2", "pyspark"}


def imported() -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_a_start_imports_neither_what_only_some_brokers_need_nor_apis_that_nobody_has_asked_for() -> None:
    modules = imported()
    assert "kafscale.broker" in modules
    assert not LATER & {each.partition(".")[0] for each in modules}
    assert "kafscale.api.records.fetch" in modules
    assert not {"kafscale.api.topics.create_topics", "kafscale.wire.messages.groups"} & modules
