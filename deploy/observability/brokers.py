"""Dashboards of brokers: all at a glance, their topics, and their consumer groups."""

from __future__ import annotations

from deploy.observability.model import BROKER, BY_BROKER, Dashboard, Panel, Query, lines, number, quantile, rate

_GLANCE = [
    number("Brokers", "count(kafscale_partitions{@})", tells="Brokers that answered the last scrape."),
    number("Partitions", "sum(kafscale_partitions{@})"),
    number("Connections", "sum(kafscale_connections{@})"),
    number("Written", rate("kafscale_topic_appended_bytes_total", by="job"), "Bps"),
    number("Read", rate("kafscale_topic_fetched_bytes_total", by="job"), "Bps"),
    number("Lag of all groups", "sum(kafscale_group_lag{@})", tells="Records, of the largest lags that brokers show."),
    number("Not in the bucket yet", "sum(kafscale_tail_bytes{@})", "bytes"),
    number("Alerts", 'count(ALERTS{alertstate="firing",alertname=~"Kafscale.*"}) or vector(0)', tells="Firing now."),
]
_TRAFFIC = [
    lines("Written, by broker", rate("kafscale_topic_appended_bytes_total"), "Bps"),
    lines("Read, by broker", rate("kafscale_topic_fetched_bytes_total"), "Bps"),
    lines("Records written", rate("kafscale_topic_appended_records_total"), "cps"),
    lines("Records read", rate("kafscale_topic_fetched_records_total"), "cps"),
    Panel(
        "Network",
        [
            Query(rate("kafscale_network_received_bytes_total"), f"received {BROKER}"),
            Query(rate("kafscale_network_sent_bytes_total"), f"sent {BROKER}"),
        ],
        "Bps",
    ),
    Panel(
        "Connections, by broker",
        [
            Query(f"{BY_BROKER} (kafscale_connections{{@}})", f"open {BROKER}"),
            Query(rate("kafscale_connections_opened_total"), f"opened a second {BROKER}"),
            Query(rate("kafscale_connections_refused_total"), f"refused a second {BROKER}"),
        ],
    ),
]
_REQUESTS = [
    lines("Requests", rate("kafscale_requests_total", by="api"), "reqps", "{{api}}"),
    lines("Time of Produce, p99", quantile("kafscale_request_seconds", 'api="Produce"'), "s"),
    lines(
        "Time of Fetch, p99",
        quantile("kafscale_request_seconds", 'api="Fetch"'),
        "s",
        tells="With the wait for new records, at most fetch.max.wait.ms.",
    ),
    lines(
        "Time of other requests, p99",
        quantile("kafscale_request_seconds", 'api!~"Produce|Fetch"', by="api"),
        "s",
        "{{api}}",
    ),
    lines("Errors in answers", rate("kafscale_errors_total", by="api, error"), "cps", "{{api}} {{error}}"),
    lines(
        "Pauses of connections",
        rate("kafscale_connection_pauses_total", by="reason"),
        "cps",
        "{{reason}}",
        "Why the broker stopped reading from connections for a moment.",
    ),
]
_DURABILITY = [
    lines("Write to the local log, p99", quantile("kafscale_wal_sync_seconds"), "s", tells="With --durability wal."),
    lines(
        "PUT of the log in the bucket, p99",
        quantile("kafscale_s3_wal_put_seconds"),
        "s",
        tells="With --durability s3-wal and segment.",
    ),
    Panel(
        "Logs",
        [
            Query(f"{BY_BROKER} (kafscale_wal_bytes{{@}})", f"local {BROKER}"),
            Query(f"{BY_BROKER} (kafscale_s3_wal_bytes{{@}})", f"in the bucket {BROKER}"),
        ],
        "bytes",
    ),
]
_PROCESS = [
    lines("Resident memory", "process_resident_memory_bytes{@}", "bytes"),
    lines("CPU", rate("process_cpu_seconds_total"), "percentunit", tells="1 is one core."),
    lines("Open files", "process_open_fds{@} / process_max_fds{@}", "percentunit"),
    Panel(
        "Memory for records",
        [
            Query("kafscale_pool_used_bytes{@}", f"chunk pool {BROKER}"),
            Query("kafscale_cache_bytes{@}", f"cache {BROKER}"),
            Query("kafscale_fetch_buffer_bytes{@}", f"fetch buffers {BROKER}"),
        ],
        "bytes",
    ),
    lines("Up for", "time() - process_start_time_seconds{@}", "s"),
    lines("Version", "kafscale_build_info{@}", legend="{{version}} {{instance}} {{broker}}"),
]
_CLUSTER = [
    lines("Brokers by state", "max by (state) (kafscale_brokers{@})", legend="{{state}}"),
    Panel(
        "Partitions in trouble",
        [
            Query("max(kafscale_partitions_without_leader{@})", "without a leader"),
            Query("max(kafscale_partitions_recovering{@})", "recovering"),
        ],
    ),
    lines("Quietest broker", "max(kafscale_heartbeat_age_seconds{@})", "s", "since its last heartbeat"),
    lines("Load", "kafscale_load_bytes_per_second{@}", "Bps"),
    lines("Controller", "kafscale_is_controller{@}"),
    lines("Restarts by the supervisor", "kafscale_process_restarts_total{@}"),
]

OVERVIEW = Dashboard(
    uid="kafscale-overview",
    title="KafScale / Overview",
    tells="All brokers at a glance.",
    rows={
        "Now": _GLANCE,
        "Traffic": _TRAFFIC,
        "Requests": _REQUESTS,
        "Logs": _DURABILITY,
        "Processes": _PROCESS,
        "Several brokers": _CLUSTER,
    },
)

_TOPIC = 'topic=~"$topic"'


def _top(metric: str) -> str:
    return f"topk(10, {rate(metric, _TOPIC, by='topic')})"


TOPICS = Dashboard(
    uid="kafscale-topic",
    title="KafScale / Topic",
    tells="What is written to topics and read from them, and who is behind.",
    variables={"topic": "kafscale_topic_appended_bytes_total"},
    rows={
        "Rates, of the ten busiest": [
            lines("Written", _top("kafscale_topic_appended_bytes_total"), "Bps", "{{topic}}"),
            lines("Read", _top("kafscale_topic_fetched_bytes_total"), "Bps", "{{topic}}"),
            lines("Records written", _top("kafscale_topic_appended_records_total"), "cps", "{{topic}}"),
            lines("Records read", _top("kafscale_topic_fetched_records_total"), "cps", "{{topic}}"),
        ],
        "Records": [
            lines(
                "Size of a record",
                f"{rate('kafscale_topic_appended_bytes_total', _TOPIC, by='topic')} / "
                f"{rate('kafscale_topic_appended_records_total', _TOPIC, by='topic')}",
                "bytes",
                "{{topic}}",
                "As batches hold it, compressed.",
            ),
            lines(
                "Times that a record is read",
                f"{rate('kafscale_topic_fetched_records_total', _TOPIC, by='topic')} / "
                f"{rate('kafscale_topic_appended_records_total', _TOPIC, by='topic')}",
                legend="{{topic}}",
            ),
        ],
        "Groups": [
            lines(
                "Lag by group",
                f"topk(10, sum by (topic, group) (kafscale_group_lag{{@,{_TOPIC}}}))",
                legend="{{topic}} {{group}}",
            ),
            lines(
                "Largest lag of a partition",
                f"topk(10, max by (topic, partition) (kafscale_group_lag{{@,{_TOPIC}}}))",
                legend="{{topic}} {{partition}}",
            ),
        ],
    },
)

_GROUP = 'group=~"$group"'
_GROUP_APIS = 'api=~"JoinGroup|SyncGroup|Heartbeat|LeaveGroup|OffsetCommit|OffsetFetch|ConsumerGroupHeartbeat"'
_GROUP_LAG = f"sum by (group) (kafscale_group_lag{{@,{_GROUP}}})"

GROUPS = Dashboard(
    uid="kafscale-group",
    title="KafScale / Group",
    tells="How far consumer groups are behind.",
    variables={"group": "kafscale_group_lag"},
    rows={
        "Lag": [
            lines("Lag", f"topk(20, {_GROUP_LAG})", legend="{{group}}"),
            lines(
                "Lag by topic",
                f"topk(20, sum by (group, topic) (kafscale_group_lag{{@,{_GROUP}}}))",
                legend="{{group}} {{topic}}",
            ),
            lines(
                "Partitions with the largest lags",
                f"topk(20, kafscale_group_lag{{@,{_GROUP}}})",
                legend="{{group}} {{topic}} {{partition}}",
            ),
            lines(
                "Change of the lag",
                f"sum by (group) (deriv(kafscale_group_lag{{@,{_GROUP}}}[5m]))",
                "cps",
                "{{group}}",
                "Records a second; above 0 the group falls behind.",
            ),
            lines(
                "Lags left out",
                "kafscale_group_lag_left_out_series{@}",
                tells="Series that do not fit on the page of metrics, the smallest lags.",
            ),
        ],
        "Coordination": [
            lines("Requests of groups", rate("kafscale_requests_total", _GROUP_APIS, by="api"), "reqps", "{{api}}"),
            lines(
                "Errors in answers to groups",
                rate("kafscale_errors_total", _GROUP_APIS, by="api, error"),
                "cps",
                "{{api}} {{error}}",
                "REBALANCE_IN_PROGRESS and MEMBER_ID_REQUIRED are normal.",
            ),
            lines("Memory of groups", "kafscale_group_state_bytes{@}", "bytes"),
            lines("Transactions", rate("kafscale_transactions_total", by="outcome"), "cps", "{{outcome}}"),
            lines("Transactional ids", "kafscale_transactional_ids{@}"),
            lines(
                "Logins",
                rate("kafscale_authentications_total", by="mechanism, outcome"),
                "cps",
                "{{mechanism}} {{outcome}}",
            ),
        ],
    },
)
