"""Several brokers on one machine: `kafscale serve --processes N`. Entered by `supervisor.serve`, which only `cli` does.

This process runs no broker, and imports little. `plans` has each broker's settings, `child` starts it again when it
dies, and `admin` merges metrics.
"""
