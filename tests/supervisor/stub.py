"""In the place of a broker: it takes the arguments of `kafscale serve`, says when it is ready, and has an admin server.

STUB_REFUSES is the id of a broker that can't start, STUB_LATE of one that does not heed SIGTERM. What is asked for with
POST is answered as a broker answers a flush.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kafscale.concurrency.process import end_with
from kafscale.process_variables import SUPERVISOR_VARIABLE


def option(name: str) -> list[str]:
    return [value for flag, value in zip(sys.argv, sys.argv[1:], strict=False) if flag == name]


BROKER_ID = int(option("--broker-id")[0])
METRICS = f"""# HELP kafscale_requests_total Requests.
# TYPE kafscale_requests_total counter
kafscale_requests_total{{api="Produce"}} {BROKER_ID}
# HELP kafscale_partitions Partitions.
# TYPE kafscale_partitions gauge
kafscale_partitions 7
"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"/metrics": METRICS, "/readyz": "ready\n"}[self.path])

    def do_POST(self) -> None:
        if "unknown" in self.path and (BROKER_ID == 4 or "everywhere" in self.path):
            self._answer("there is no topic", 404)
            return
        line = {"done": False, "segments": 0, "bytes": 0, "wanted_bytes": 10 * BROKER_ID, "seconds": 0.1}
        last = {
            "done": True,
            "segments": 1,
            "bytes": 10 * BROKER_ID,
            "wanted_bytes": 10 * BROKER_ID,
            "seconds": BROKER_ID,
        }
        self._answer(f"{json.dumps(line)}\n{json.dumps(last)}\n")

    def _answer(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    end_with(int(os.environ[SUPERVISOR_VARIABLE]))
    print(f"log of {BROKER_ID}: {sys.argv[1:]}", file=sys.stderr, flush=True)
    if os.environ.get("STUB_REFUSES") == str(BROKER_ID):
        print("kafscale: the port is taken", file=sys.stderr)
        sys.exit(1)
    if os.environ.get("STUB_LATE") == str(BROKER_ID):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, lambda *_: print(f"reload of {BROKER_ID}", file=sys.stderr, flush=True))
    listeners = []
    for each in option("--listen"):
        host, _, port = each.partition("=")[2].rpartition(":")
        listeners.append(socket.create_server((host, int(port))))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    first, *others = (f"127.0.0.1:{each.getsockname()[1]}" for each in listeners)
    print(f"kafscale is ready: kafka {first} admin 127.0.0.1:{server.server_port}", *others, flush=True)
    while True:
        signal.pause()


main()
