"""What is written of a broker that idles."""

import json

from click.testing import CliRunner

from bench import idle


def test_a_start_and_each_state_have_their_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(idle, "PARTITIONS", 3)
    monkeypatch.setattr(idle, "SETTLE_SECONDS", 0.0)
    output = tmp_path / "idle.json"
    done = CliRunner().invoke(idle.main, ["--starts", "1", "--seconds", "0.05", "--output", str(output)])
    assert done.exit_code == 0, done.output
    found = json.loads(output.read_text())
    assert [each["ready_seconds"] > each["cpu_seconds"] / 2 > 0 for each in found["starts"]] == [True]
    assert [each["state"] for each in found["idle"]] == [
        "no topic",
        "3 empty partitions",
        "a record in each, not in the bucket",
        "a record in each, in the bucket",
    ]
    assert all(each["cpu_percent"] >= 0 and each["rss_mib"] > 10 for each in found["idle"])
