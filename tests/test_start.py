"""A start imports nothing that it can do without: two thirds of its time are imports."""

from __future__ import annotations

import json
import subprocess
import sys

SERVE = "import json, sys, kafscale.cli.serve, kafscale.serving; print(json.dumps(sorted(sys.modules)))"
HELP = """
import io, json, sys
before = {*sys.modules}
stdout, sys.stdout = sys.stdout, io.StringIO()
import kafscale.cli.main
assert kafscale.cli.main.run(["--help"]) == 0
assert "Commands:" in sys.stdout.getvalue()
print(json.dumps(sorted({*sys.modules} - before)), file=stdout)
"""
# Packages that only some brokers or later requests need.
LATER = {"httpx", "rich", "cryptography", "scramp", "joserfc", "cramjam", "re2", "pyspark"}


def imported(program: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_a_start_imports_no_optional_packages_and_no_apis_that_clients_ask_for_later() -> None:
    modules = imported(SERVE)
    assert "kafscale.broker" in modules
    assert not LATER & {each.partition(".")[0] for each in modules}
    assert "kafscale.api.records.fetch" in modules
    assert not {"kafscale.api.topics.create_topics", "kafscale.wire.messages.topics"} & modules


def test_help_imports_click_and_its_own_small_modules() -> None:
    """It took 0.25 s of CPU, as it imported all commands for their summaries."""
    modules = imported(HELP)
    others = {each for each in modules if each.partition(".")[0] not in {*sys.stdlib_module_names, "click"}}
    main = {f"kafscale.cli.{name}" for name in ("main", "output")}
    small = {f"kafscale.{name}" for name in ("errors", "escaping", "process_variables")}
    assert others == {"kafscale", "kafscale.cli", *main, *small}
    assert not {"asyncio", "logging", "socket", "ssl", "difflib", "urllib.request"} & modules
