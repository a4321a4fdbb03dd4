"""`kafscale pipeline` as far as it starts no Spark."""

import pytest

from kafscale.cli.main import run

TEXT = """\
source: {store: "file:/data/bucket"}
catalog: {type: hadoop, warehouse: /data/warehouse}
checkpoints: /data/checkpoints
mappings:
  - {topic: orders, table: sales.orders}
"""


def test_a_file_is_checked_without_connecting(tmp_path, capsys):
    file = tmp_path / "pipeline.yaml"
    file.write_text(TEXT)
    assert run(["pipeline", "validate", "--offline", str(file)]) == 0
    assert "a pipeline, of 1 mapping(s)" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "validate", "status", "maintain"])
def test_what_is_wrong_in_a_file_is_told_before_spark_starts(tmp_path, capsys, command):
    file = tmp_path / "pipeline.yaml"
    file.write_text(TEXT.replace("topic:", "topik:"))
    assert run(["pipeline", command, str(file)]) == 2
    assert "pipeline.yaml:5: mappings[0].topik: there is no such key; did you mean 'topic'?" in capsys.readouterr().err
