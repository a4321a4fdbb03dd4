"""The one source of Grafana's dashboards and Prometheus' alerts: `python -m deploy.observability` writes them.

`model` has their types; `brokers`, `bucket` and `alerts` declare them; `rendering` makes the files of deploy/grafana
and deploy/prometheus. Tests hold the files to this source, and evaluate each query by Prometheus.
"""
