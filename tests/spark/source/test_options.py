"""Options: names without case, defaults, precedence, and what is said of wrong ones."""

import logging

import pytest

from kafscale.errors import ConfigError
from kafscale.spark.source.offsets import EARLIEST, LATEST
from kafscale.spark.source.options import OPTIONS, BatchOptions, Given, ReadOptions, StreamOptions

TIMES = '{"t":{"0":5}}'
READ = {"store": "file:/bucket", "subscribe": "t"}


def batch(**options: str) -> BatchOptions:
    return BatchOptions.of(Given(options))


def stream(**options: str) -> StreamOptions:
    return StreamOptions.of(Given(options))


def read(**options: str) -> ReadOptions:
    return ReadOptions.of(Given(READ | options))


def test_defaults():
    options = read()
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.committed_only
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert options.namespace == "default"
    assert batch().starting.everywhere == EARLIEST
    assert batch().ending.everywhere == LATEST
    assert stream().starting.everywhere == LATEST
    assert stream().max_delay_ms == 15 * 60_000


@pytest.mark.parametrize("name", ["isolationLevel", "kafka.isolation.level"])
def test_the_isolation_level_has_two_names(name):
    assert not read(**{name: " Read_Uncommitted "}).committed_only
    assert read(**{name: "read_committed"}).committed_only
    same = {"isolationLevel": "read_uncommitted", "kafka.isolation.level": "read_uncommitted"}
    assert not read(**same).committed_only


def test_names_have_no_case():
    options = ReadOptions.of(Given({"STORE": "s3://bucket/p", "SubScribe": "a, b,", "FAILONDATALOSS": "False"}))
    assert options.subscription.topics == ["a", "b"]
    assert not options.fail_on_data_loss
    assert options.bucket.url.prefix == "p"


def test_options_of_the_buckets_place():
    bucket = read(
        s3Endpoint="http://localhost:9000",
        s3Region="eu",
        s3PathStyle="true",
        s3AccessKeyId="k",
        s3SecretAccessKey="secret",
    ).bucket
    assert (bucket.endpoint, bucket.region, bucket.path_style) == ("http://localhost:9000", "eu", True)
    assert bucket.credentials is not None
    assert bucket.credentials.secret_access_key not in repr(bucket)


@pytest.mark.parametrize(
    ("options", "name", "everywhere"),
    [
        ({"startingOffsets": "earliest"}, "startingOffsets", EARLIEST),
        ({"startingOffsets": "earliest", "startingOffsetsByTimestamp": TIMES}, "startingOffsetsByTimestamp", None),
        ({"startingOffsetsByTimestamp": TIMES, "startingTimestamp": " 7"}, "startingTimestamp", 7),
    ],
)  # fmt: skip
def test_a_timestamp_overrides_partition_timestamps_and_both_override_offsets(options, name, everywhere):
    for found in (batch(**options).starting, stream(**options).starting):
        assert (found.option, found.everywhere) == (name, everywhere)
    ending = {key.replace("starting", "ending"): value for key, value in options.items() if value != "earliest"}
    if ending:
        assert batch(**ending).ending.option == name.replace("starting", "ending")


def test_a_strategy_is_of_starting_timestamps_alone():
    assert not batch(startingTimestamp="1", endingTimestamp="2").starting.latest_if_none
    assert batch(startingTimestamp="1", startingOffsetsByTimestampStrategy="LATEST").starting.latest_if_none
    assert batch(startingTimestamp="1", endingTimestamp="2").ending.latest_if_none


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribeTo": "t"}, "did you mean 'subscribe'"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"xyz": "1"}, "there are: store, "),
        ({"assign": '{"t":[0]}'}, "only one of the options subscribe, subscribePattern, assign"),
        ({"subscribe": " , "}, "names no topic"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"minPartitions": "0"}, "minPartitions is a positive number"),
        ({"maxRecordsPerPartition": "x"}, "maxRecordsPerPartition is a positive number"),
        ({"store": "ftp://x"}, "store: 'ftp://x' is not a store"),
        ({"s3AccessKeyId": "k"}, "belong together"),
        ({"kafka.isolation.level": "none"}, "kafka.isolation.level is read_committed or read_uncommitted"),
        ({"isolationLevel": "none"}, "isolationLevel is read_committed or read_uncommitted, not 'none'"),
        ({"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"}, "say different things"),
        ({"kafka.auto.offset.reset": "latest"}, "set startingOffsets"),
        ({"kafka.key.deserializer": "x"}, "keys are bytes"),
        ({"kafka.enable.auto.commit": "true"}, "leave it out"),
    ],
)
def test_unreadable_topics_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        read(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the option store is required"),
        ({"store": "file:/b"}, "one of the options subscribe"),
        ({"store": "file:/b", "subscribePattern": "("}, "not a regular expression"),
        ({"store": "file:/b", "subscribePattern": " "}, "subscribePattern is empty"),
        ({"store": "file:/b", "assign": "t"}, "assign is JSON"),
        ({"store": "file:/b", "assign": "{}"}, "names no partition"),
    ],
)
def test_missing_or_malformed_required_options_are_reported(options, message):
    with pytest.raises(ConfigError, match=message):
        ReadOptions.of(Given(options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "can't be latest in a batch query"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "can't be latest in a batch query"),
        ({"endingOffsets": "earliest"}, "can't be earliest in a batch query"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "can't be earliest in a batch query"),
        ({"startingOffsets": "soon"}, "startingOffsets is JSON like"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets is JSON like"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "startingOffsets is JSON like"),
        ({"startingOffsets": '{"t":[0]}'}, "startingOffsets is JSON like"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is a number of milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "none"}, "error or latest"),
        ({"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":3}}'}, "would begin at 5"),
        ({"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":7}}'}, "name different partitions"),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsetsByTimestamp": '{"t":{"0":3}}'},
            "would begin at 5",
        ),
    ],
)
def test_bounds_that_a_batch_can_not_have_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        batch(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "not for streams"),
        ({"endingOffsetsByTimestamp": "{}"}, "not for streams"),
        ({"endingTimestamp": "1"}, "not for streams"),
        ({"pushFilters": "true"}, "not for streams"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is higher than"),
        ({"maxTriggerDelay": "soon"}, "a time like"),
    ],
)
def test_options_that_a_stream_can_not_have_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        stream(**options)


def test_delays():
    delays = {"90": 90, "30s": 30_000, "2 min": 120_000, "1h": 3_600_000, "10ms": 10}
    assert {text: stream(maxTriggerDelay=text).max_delay_ms for text in delays} == delays


def test_ignored_options_give_one_warning(caplog):
    given = Given({**READ, "kafka.group.id": "g", "kafka.isolation.level": "read_committed", "groupIdPrefix": "p"})
    with caplog.at_level(logging.WARNING):
        given.warn_of_ignored()
        given.warn_of_ignored()
    assert [record.getMessage() for record in caplog.records] == [
        "ignored, since the bucket is read and no broker: groupidprefix, kafka.group.id"
    ]
    assert ReadOptions.of(given).committed_only


def test_limits_of_streams_are_ignored_in_batches_with_a_warning(caplog):
    batch(maxOffsetsPerTrigger="5")
    assert "maxOffsetsPerTrigger is ignored in a batch query" in caplog.text


def test_every_option_has_a_description_and_a_unique_name():
    options = [option for group in OPTIONS.values() for option in group]
    assert all(option.doc.endswith((".", "…")) for option in options)
    assert len({option.name.lower() for option in options}) == len(options)


def test_options_that_spark_adds_to_a_table_are_dropped():
    given = Given(
        {"provider": "kafscale", "path": "file:/x", "Owner": "me", "option.store": "file:x", "store": "file:x"}
    )
    assert given.values == {"store": "file:x"}
    with pytest.raises(ConfigError, match="there is no option 'path'"):
        Given({"path": "file:/x"})


def test_a_table_without_options_gets_an_error_suggesting_a_view():
    with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW … USING kafscale OPTIONS"):
        ReadOptions.of(Given({}))
