"""Makes the page of log events from the table of events and the calls that write them."""

from __future__ import annotations

from kafscale.cli.log_events import EVENTS
from tests.docs.log_calls import log_calls


def log_events_page() -> str:
    calls = {call.message: call for call in reversed(log_calls())}  # of several, the first
    rows = []
    for message, listed in sorted(EVENTS.items(), key=lambda item: item[1]):
        event, *names = listed.split()
        call, fields = calls[message], ", ".join(f"`{name}`" for name in names)
        shown = message.replace("|", "\\|").replace("`", "'")
        rows.append(f"| `{event}` | {call.level} | `{call.logger}` | {fields} | `{shown}` |")
    return "\n".join([_LOG_EVENTS, *rows, ""])


_LOG_EVENTS = """\
# Log events

With `--log-format json` each line is an object with `time`, `level`, `logger`, `event`, the event's fields and
`message`; a line with a traceback has `exception`. Alert on `event`: it stays when the message changes. Lines of
libraries have the event `unlisted`. A field `partition` such as `orders-0` often comes with `topic` and `index`.

```
$ kafscale serve --log-format json
{"time": "2026-01-31T12:00:00.123Z", "level": "error", "logger": "kafscale.log.flush.flusher", "event": "flush-failed", "partition": "orders-0", "topic": "orders", "index": 0, "error": "no answer in 10 s", "message": "flush of orders-0 failed and is tried again: no answer in 10 s"}
```

The field `audit` is an object: who did or was refused what. Made from `kafscale/cli/log_events.py` by `python -m
tests.docs.reference_pages`.

| event | level | logger | fields | message |
|---|---|---|---|---|"""  # noqa: E501
