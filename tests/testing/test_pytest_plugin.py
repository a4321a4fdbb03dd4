"""The plugin as its users have it: the examples of the documentation, other people's runs, and what it costs.

Each run of pytest is a process of its own, with no plugin but ours, so that nothing depends on what is installed here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kafscale.testing import pytest_plugin

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "how-to" / "test-your-program.md"
RUN_SECONDS = 100
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def users(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's directory, where the plugin is found as if it were installed, and warnings are errors."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyprojecttoml(
        """
        [tool.pytest.ini_options]
        addopts = "-p kafscale.testing.pytest_plugin --strict-markers --strict-config"
        filterwarnings = ["error"]
        """
    )
    return pytester


def run(users: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return users.runpytest_subprocess(*arguments, timeout=RUN_SECONDS)


def test_is_the_plugin_that_pyproject_names() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"kafscale": pytest_plugin.__name__}


def test_the_examples_of_the_documentation_pass(users: pytest.Pytester) -> None:
    with_confluent, with_aiokafka, secured, with_registry, _ = EXAMPLES
    users.makepyfile(
        test_confluent=with_confluent, test_aiokafka=with_aiokafka, test_secured=secured, test_registry=with_registry
    )
    run(users).assert_outcomes(passed=7)


def test_a_test_without_idempotence_fails_as_documented(users: pytest.Pytester) -> None:
    careless = EXAMPLES[0].replace('"enable.idempotence": True, ', "")
    assert careless != EXAMPLES[0]
    users.makepyfile(test_confluent=careless)
    result = run(users, "-k", "is_not_sent_twice")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert [[]b'one', b'one'] == [[]b'one']*"])


def test_fixtures_are_fresh_shared_marked_and_healed(users: pytest.Pytester) -> None:
    users.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.kafscale(default_partitions=2, durability="segment")
        seen = []

        @pytest.mark.kafscale(default_partitions=5)
        def test_the_closest_marker_wins(kafscale_broker):
            assert kafscale_broker.settings.default_partitions_count == 5
            assert kafscale_broker.settings.durability == "segment"

        @pytest.mark.parametrize("turn", [1, 2])
        def test_fresh_and_shared(kafscale_broker, kafscale_session_broker, turn):
            kafscale_broker.create_topic("same")
            seen.append(kafscale_session_broker.new_topic())
            assert len(set(seen)) == turn

        @pytest.fixture
        def observed(kafscale_broker):
            yield kafscale_broker
            assert kafscale_broker.faults.drop_connections() == 0
            assert not kafscale_broker._request_faults

        def test_healed(observed, kafscale_faults):
            kafscale_faults.fail("Produce", "UNKNOWN_SERVER_ERROR", times=None)

        @pytest.mark.kafscale(durabilty="segment")
        def test_misspelt(kafscale_broker):
            pass
        """
    )
    result = run(users)
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*kafscale: 'durabilty' is not an option of a broker under test*"])


def test_faults_acted_on_a_broker_that_the_test_did_not_have(users: pytest.Pytester) -> None:
    """A test with `kafscale_session_broker` passed, as nothing ever went wrong with that."""
    users.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session")
        def address(kafscale_session_broker):
            return kafscale_session_broker.bootstrap

        def test_of_the_session(address, kafscale_faults, request):
            assert kafscale_faults is request.getfixturevalue("kafscale_session_broker").faults
            kafscale_faults.fail("Produce", "UNKNOWN_SERVER_ERROR", times=None)

        def test_healed_for_the_next_test(kafscale_session_broker):
            assert not kafscale_session_broker._request_faults

        def test_secured(kafscale_faults, kafscale_secured_broker):
            assert kafscale_faults is kafscale_secured_broker.faults

        def test_fresh(kafscale_faults, kafscale_broker):
            assert kafscale_faults is kafscale_broker.faults

        def test_both(kafscale_broker, kafscale_session_broker, kafscale_faults):
            pass

        def test_none(kafscale_faults):
            pass
        """
    )
    result = run(users)
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*this test has kafscale_broker and kafscale_session_broker: use the `faults` of one of them*",
            "*this test has no broker: request one*",
        ]
    )


def test_works_under_trio(users: pytest.Pytester) -> None:
    users.makepyfile(
        """
        from kafscale.client.client import connect
        from kafscale.client.producer import Producer
        from kafscale.config import Address
        from kafscale.wire.records import Record

        async def send(bootstrap, value):
            async with connect(Address.parse(bootstrap)) as client:
                await Producer(client=client, topic="orders").send([Record(value=value)])

        async def test_trio(kafscale_broker):
            await send(kafscale_broker.bootstrap, b"one")
            kafscale_broker.restart()
            fault = kafscale_broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
            await send(kafscale_broker.bootstrap, b"two")
            assert fault.met_count == 1
            assert [each.value for each in kafscale_broker.records("orders")] == [b"one", b"two"]
        """
    )
    run(users, "-p", "pytest_trio.plugin", "-o", "trio_mode=true").assert_outcomes(passed=1)


def test_imports_nothing_until_a_fixture_is_used() -> None:
    script = """
import sys
import pytest
before = set(sys.modules)
import kafscale.testing.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY, timeout=RUN_SECONDS
    )
    assert process.stdout.split() == ["kafscale", "kafscale.testing", "kafscale.testing.pytest_plugin"]


FAILING = """
import pytest

def test_waits_for_more(kafscale_broker):
    kafscale_broker.produce("orders", "one", key="k")
    kafscale_broker.wait_for("orders", 3, timeout_seconds=0.1)  # the user's line

def test_reads_a_missing_topic(kafscale_broker):
    kafscale_broker.records("nowhere")

def test_asks_a_stopped_broker(kafscale_broker):
    kafscale_broker.stop()
    kafscale_broker.produce("orders", "one")

@pytest.mark.kafscale(nonsense=1)
def test_has_a_wrong_option(kafscale_broker):
    raise AssertionError("it ran")
"""


def test_a_failure_shows_the_line_of_the_test_and_nothing_of_ours(users: pytest.Pytester) -> None:
    users.makepyfile(FAILING)
    result = run(users)
    result.assert_outcomes(failed=3, errors=1)
    text = result.stdout.str()
    for line in ("# the user's line", 'kafscale_broker.records("nowhere")', 'kafscale_broker.produce("orders", "one")'):
        assert line in text
    assert "topic 'orders' has 1 of 3 records after 0.1 s" in text
    assert "partition 0, offset 0: key b'k', value b'one'" in text
    assert "there is no topic 'nowhere'" in text
    assert "the broker is stopped; start it first" in text
    assert "@pytest.mark.kafscale: 'nonsense' is not an option of a broker under test; allowed: " in text
    places = re.findall(r"^(\S+\.py):\d+: ", result.stdout.str(), re.MULTILINE)
    assert {Path(place).name for place in places} == {
        "test_a_failure_shows_the_line_of_the_test_and_nothing_of_ours.py"
    }
