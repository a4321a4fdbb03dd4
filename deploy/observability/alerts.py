"""Alerts of brokers and pipelines; each has a runbook, a heading of a page of docs/.

An alert on a counter that begins with its first event compares its value, since `increase` misses that event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.observability.model import Alert, Severity

_SLOW = "operations.md#the-switch---s3-concurrency-kafscale_s3_concurrency"
_SILENT = "operations.md#the-store-does-not-answer"
_DAMAGED = "operations.md#a-segment-is-damaged"
_BROKERS = "operations.md#brokers-that-share-the-bucket"
_REFUSED = "operations.md#connections-are-refused"
_START = "operations.md#a-start-takes-long"
_PIPELINE = "how-to/iceberg.md#metrics"

_OF_BROKERS = (
    Alert(
        name="KafscaleBrokerDown",
        expression='up{job="kafscale"} == 0 or kafscale_process_up == 0',
        lasting="1m",
        severity=Severity.CRITICAL,
        summary="Broker {{ $labels.instance }} {{ $labels.broker }} does not answer.",
        runbook=_START,
    ),
    Alert(
        name="KafscaleBrokerRestarts",
        expression="increase(kafscale_process_restarts_total[15m]) > {limit}",
        limit=2,
        lasting="0s",
        summary="Broker {{ $labels.broker }} of {{ $labels.instance }} ends and is started again and again.",
        runbook=_START,
    ),
    Alert(
        name="KafscaleErrors",
        expression='sum by (instance, api, error) (rate(kafscale_errors_total{error=~"UNKNOWN_SERVER_ERROR|'
        'KAFKA_STORAGE_ERROR|CORRUPT_MESSAGE|REQUEST_TIMED_OUT"}[5m])) > {limit}',
        limit=0.1,
        lasting="5m",
        summary="{{ $labels.instance }} answers {{ $labels.api }} with {{ $labels.error }}.",
        runbook="operations.md#operations",
    ),
    Alert(
        name="KafscaleProduceSlow",
        expression="histogram_quantile(0.99, sum by (instance, le) "
        '(rate(kafscale_request_seconds_bucket{api="Produce"}[5m]))) > {limit}',
        limit=1,
        lasting="10m",
        summary="One in a hundred Produces at {{ $labels.instance }} takes {{ $value }} s.",
        runbook=_SLOW,
    ),
    Alert(
        name="KafscaleConnectionsRefused",
        expression="increase(kafscale_connections_refused_total[5m]) > {limit}",
        limit=10,
        lasting="0s",
        summary="{{ $labels.instance }} refuses connections, {{ $value }} in five minutes.",
        runbook=_REFUSED,
    ),
    Alert(
        name="KafscaleCertificateExpires",
        expression="kafscale_ssl_certificate_expiry_timestamp_seconds - time() < {limit} * 86400",
        limit=14,
        lasting="0s",
        summary="The certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}.",
        runbook="how-to/secure-a-broker.md#renew-certificates",
    ),
    Alert(
        name="KafscaleFilesUnusable",
        expression="increase(kafscale_file_reloads_failed_total[1h]) > 0",
        lasting="0s",
        summary="{{ $labels.instance }} can't use a changed certificate or token; it goes on with the old one.",
        runbook="how-to/secure-a-broker.md#renew-certificates",
    ),
    Alert(
        name="KafscaleGroupLagGrows",
        expression="sum by (instance, group, topic) (kafscale_group_lag) > {limit} and "
        "sum by (instance, group, topic) (deriv(kafscale_group_lag[15m])) > 0",
        limit=100_000,
        lasting="15m",
        summary="Group {{ $labels.group }} is {{ $value }} records behind on {{ $labels.topic }}, and falls behind.",
        runbook="operations.md#consumers-of-the-bucket-are-slow",
    ),
    Alert(
        name="KafscaleProducersForgotten",
        expression='increase(kafscale_producer_ids_evicted_total{state="active"}[1h]) > 0',
        lasting="0s",
        summary="{{ $labels.instance }} forgets active idempotent producers, whose retries it can't recognise.",
        runbook=_START,
    ),
)
_OF_LOG_AND_BUCKET = (
    Alert(
        name="KafscaleStoreSilent",
        expression="kafscale_store_silent_seconds > {limit}",
        limit=10,
        lasting="0s",
        severity=Severity.CRITICAL,
        summary="The object store has not answered {{ $labels.instance }} for {{ $value }} s.",
        runbook=_SILENT,
    ),
    Alert(
        name="KafscaleStoreSlowDown",
        expression='sum by (instance) (rate(kafscale_store_operations_total{outcome="slow_down"}[5m])) > {limit}',
        limit=0.1,
        lasting="10m",
        summary="The object store asks {{ $labels.instance }} to slow down.",
        runbook=_SILENT,
    ),
    Alert(
        name="KafscaleStoreQueue",
        expression="histogram_quantile(0.99, sum by (instance, le) "
        '(rate(kafscale_store_wait_seconds_bucket{class="acknowledge"}[5m]))) > {limit}',
        limit=0.5,
        lasting="10m",
        summary="Uploads of {{ $labels.instance }} wait {{ $value }} s for a place at the store.",
        runbook=_SLOW,
    ),
    Alert(
        name="KafscaleFlushesFail",
        expression="increase(kafscale_flush_failures_total[15m]) > {limit}",
        limit=3,
        lasting="0s",
        summary="Flushes of {{ $labels.instance }} fail; what is produced stays in the log.",
        runbook=_SILENT,
    ),
    Alert(
        name="KafscaleFlushesLate",
        expression="kafscale_flush_age_seconds > {limit}",
        limit=3600,
        lasting="10m",
        summary="A record at {{ $labels.instance }} is not in the bucket after {{ $value | humanizeDuration }}.",
        runbook="operations.md#requests-cost-too-much",
    ),
    Alert(
        name="KafscaleDiskFull",
        expression="kafscale_wal_out_of_space == 1",
        lasting="0s",
        severity=Severity.CRITICAL,
        summary="The disk of {{ $labels.instance }} is full: produces wait.",
        runbook="operations.md#the-disk-is-full",
    ),
    Alert(
        name="KafscaleSegmentsDamaged",
        expression="kafscale_quarantined_segments > 0 or kafscale_missing_segments > 0",
        lasting="0s",
        severity=Severity.CRITICAL,
        summary="{{ $value }} segments can't be read at {{ $labels.instance }}; consumers skip their records.",
        runbook=_DAMAGED,
    ),
    Alert(
        name="KafscaleSegmentsLate",
        expression="kafscale_late_segments > 0",
        lasting="0s",
        summary="A superseded broker wrote {{ $value }} segments, which {{ $labels.instance }} does not read.",
        runbook="operations.md#a-superseded-broker-wrote-late",
    ),
    Alert(
        name="KafscaleBatchesWithoutTopic",
        expression="kafscale_unknown_topic_batches > 0",
        lasting="0s",
        severity=Severity.CRITICAL,
        summary="{{ $labels.instance }} keeps {{ $value }} batches aside, since its metadata was lost.",
        runbook=_START,
    ),
)
_OF_CLUSTERS = (
    Alert(
        name="KafscalePartitionsWithoutLeader",
        expression="max by (job) (kafscale_partitions_without_leader) > 0",
        lasting="1m",
        severity=Severity.CRITICAL,
        summary="{{ $value }} partitions have no leader that serves.",
        runbook=_BROKERS,
    ),
    Alert(
        name="KafscaleBrokersLost",
        expression='max by (job) (kafscale_brokers{state=~"fenced|away"}) > 0',
        lasting="5m",
        summary="{{ $value }} brokers were declared dead and did not come back.",
        runbook=_BROKERS,
    ),
    Alert(
        name="KafscaleNoController",
        expression="sum by (job) (kafscale_is_controller) != 1",
        lasting="2m",
        severity=Severity.CRITICAL,
        summary="{{ $value }} brokers are the controller; one should be.",
        runbook=_BROKERS,
    ),
)
_OF_PIPELINES = (
    Alert(
        name="KafscalePipelineDown",
        expression='up{job="kafscale-pipeline"} == 0',
        lasting="5m",
        summary="Pipeline {{ $labels.instance }} does not answer.",
        runbook=_PIPELINE,
    ),
    Alert(
        name="KafscalePipelineStopped",
        expression="kafscale_pipeline_failures_total > 0",
        lasting="0s",
        severity=Severity.CRITICAL,
        summary="Mapping {{ $labels.mapping }} has stopped: its table gets no more rows.",
        runbook=_PIPELINE,
    ),
    Alert(
        name="KafscalePipelineLate",
        expression="kafscale_pipeline_lag_seconds > {limit}",
        limit=900,
        lasting="10m",
        summary="The table of {{ $labels.mapping }} is {{ $value | humanizeDuration }} behind the bucket.",
        runbook=_PIPELINE,
    ),
    Alert(
        name="KafscaleDeadLetters",
        expression="increase(kafscale_pipeline_dead_letters_total[15m]) > 0",
        lasting="0s",
        summary="Mapping {{ $labels.mapping }} meets bad records, {{ $value }} in 15 minutes.",
        runbook=_PIPELINE,
    ),
)

ALERTS: Mapping[str, Sequence[Alert]] = {
    "kafscale-brokers": _OF_BROKERS,
    "kafscale-log-and-bucket": _OF_LOG_AND_BUCKET,
    "kafscale-several-brokers": _OF_CLUSTERS,
    "kafscale-pipelines": _OF_PIPELINES,
}
