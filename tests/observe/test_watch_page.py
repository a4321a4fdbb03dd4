"""The page on watching a broker can be followed: its commands run as they are written, on free ports."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deploy.observability.rendering import DEPLOY
from tests.devtools.external.s3_processes import free_port
from tests.devtools.processes.process import broker_process
from tests.docs.blocks import blocks_of
from tests.docs.test_pages import DOCS
from tests.observe.prometheus import wait_until

pytestmark = [
    pytest.mark.observe,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not on the PATH"),
]


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "prometheus" / "alerts.yaml", tmp_path)
    port = free_port()
    server: subprocess.Popen[bytes] | None = None
    printed: list[str] = []
    with broker_process() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(10):
            producer.produce("orders", b"%d" % number)
        assert producer.flush(60) == 0
        try:
            for language, text in blocks_of((DOCS / "how-to" / "watch.md").read_text()):
                text = text.replace("127.0.0.1:9644", str(broker.admin)).replace("127.0.0.1:9090", f"127.0.0.1:{port}")
                if language == "yaml":
                    (tmp_path / "prometheus.yaml").write_text(text.replace("15s", "1s"))
                elif language == "terminal":
                    command = f"exec {text.strip()} --web.listen-address=127.0.0.1:{port}"
                    server = subprocess.Popen(["sh", "-c", command], cwd=tmp_path, stderr=subprocess.DEVNULL)
                    wait_until(lambda: _fires(port), "the pipeline, which does not run, is pending or fires")
                else:
                    printed.append(_printed(text, tmp_path))
        finally:
            if server is not None:
                server.terminate()
                server.wait(30)
    topics, checked, _ = printed
    assert 'kafscale_topic_appended_records_total{topic="orders"} 10' in topics
    assert "25 rules found" in checked


def _printed(command: str, directory: Path) -> str:
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=directory,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _fires(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/alerts", timeout=10) as answer:
        return b"KafscalePipelineDown" in answer.read()
    return False
