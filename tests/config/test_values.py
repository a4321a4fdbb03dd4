"""Listeners, addresses and store URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafscale.config import (
    Address,
    IpConnections,
    Limits,
    Listener,
    Settings,
    StoreEncryption,
    StoreUrl,
    canonical_ip,
)
from kafscale.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("127.0.0.1:9092", Listener("PLAINTEXT", "127.0.0.1", 9092)),
        ("INTERNAL=broker_1.example:0", Listener("INTERNAL", "broker_1.example", 0)),
        ("V6=[::1]:9092", Listener("V6", "::1", 9092)),
        ("SASL_SSL://0.0.0.0:9092", Listener("SASL_SSL", "0.0.0.0", 9092)),
    ],
)
def test_a_listener_is_read_and_written(text: str, listener: Listener) -> None:
    assert Listener.parse(text) == listener
    assert Listener.parse(str(listener)) == listener


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9092",
        "localhost",
        ":9092",
        "localhost:",
        "h:65536",
        "h:-1",
        "=h:1",
        "A B=h:1",
        "::1:9092",
        "[h]:1",
        "h:1:2",
        "https://h:1",
        "A=SSL://h:1",
        "SSL://h:1/x",
    ],
)
def test_a_malformed_listener_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a listener; allowed: \[NAME=\]HOST:PORT"):
        Listener.parse(text)


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert str(Address.parse("[2001:db8::1]:9644")) == "[2001:db8::1]:9644"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:9644", Address("127.0.0.1", 9644)),
        ("HTTP://[::1]:9644/", Address("::1", 9644)),
        ("http://broker.example", Address("broker.example", 80)),
        ("PLAINTEXT://broker.example:9092", Address("broker.example", 9092)),
    ],
)
def test_an_address_can_be_a_url(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(text).wants_tls is False


def test_a_url_that_asks_for_tls_is_refused_where_there_is_none() -> None:
    for text in ("https://h:1", "SSL://h:1", "sasl_ssl://h:1"):
        assert Address.parse(text, allows_tls=True).wants_tls
        with pytest.raises(ValueError, match="asks for TLS, which is not supported here"):
            Address.parse(text)


@pytest.mark.parametrize("text", ["http://", "http://h:1/path", "http://h:1?x", "http://user:secret@h:1", "h:1/", "h"])
def test_a_malformed_address_is_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address; allowed: HOST:PORT") as caught:
        Address.parse(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("memory:", StoreUrl(scheme="memory")),
        ("memory:4GiB", StoreUrl(scheme="memory", max_bytes=4 << 30)),
        ("file:some/where", StoreUrl(scheme="file", path=Path("some/where"))),
        ("file:///var/log", StoreUrl(scheme="file", path=Path("/var/log"))),
        ("s3://bucket", StoreUrl(scheme="s3", bucket="bucket")),
        ("s3://bucket/a/b/", StoreUrl(scheme="s3", bucket="bucket", prefix="a/b")),
    ],
)
def test_a_store_url_is_read_and_written(text: str, url: StoreUrl) -> None:
    assert StoreUrl.parse(text) == url
    assert StoreUrl.parse(str(url)) == url


@pytest.mark.parametrize("text", ["", "bucket", "file:", "s3://", "s3://x", "s3://a_b/c//d", "gs://bucket"])
def test_a_malformed_store_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not a store(; allowed: file:PATH, s3://BUCKET|: .* is not the name of a)"
    ):
        StoreUrl.parse(text)


@pytest.mark.parametrize("bucket", ["x", "ab", "a" * 64, "under score", "-a-b-"])
def test_a_bad_bucket_name_error_states_the_allowed_length(bucket: str) -> None:
    with pytest.raises(ValueError, match=rf"'{bucket}' is not the name of a bucket; .* BUCKET has 3 to 63 letters"):
        StoreUrl.parse(f"s3://{bucket}/prefix")


def test_the_cache_of_segments_is_for_stores_that_are_far() -> None:
    near, far = Settings(), Settings(store=StoreUrl(scheme="s3", bucket="b"))
    assert (near.cache_bytes, near.readahead_bytes) == (0, 0)
    assert (far.cache_bytes, far.readahead_bytes) == (64 << 20, 8 << 20)


@pytest.mark.parametrize(
    ("text", "encryption"),
    [
        ("AES256", StoreEncryption("AES256")),
        ("aws:kms:my-key", StoreEncryption("aws:kms", "my-key")),
        ("aws:kms:arn:aws:kms:eu-west-1:1:key/2", StoreEncryption("aws:kms", "arn:aws:kms:eu-west-1:1:key/2")),
    ],
)
def test_an_encryption_is_read_and_written(text: str, encryption: StoreEncryption) -> None:
    assert StoreEncryption.parse(f" {text}\n") == encryption
    assert str(encryption) == text


@pytest.mark.parametrize(
    "text", ["", "aes256", "AES256:key", "aws:kms", "aws:kms:", "aws:kms:a key", "aws:kms:a\r\nb:c"]
)
def test_a_malformed_encryption_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an encryption; allowed: AES256, or aws:kms:KEY"):
        StoreEncryption.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_an_address_has_one_form(text: str, canonical: str) -> None:
    assert canonical_ip(text) == canonical


@pytest.mark.parametrize("text", ["", "localhost", "192.0.2.256", "1", "192.0.2.1:80"])
def test_text_that_is_not_an_ip_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        canonical_ip(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("127.0.0.1:200", IpConnections("127.0.0.1", 200)),
        ("[2001:DB8::1]:0", IpConnections("2001:db8::1", 0)),
    ],
)
def test_the_connections_of_an_address_are_read_and_written(text: str, value: IpConnections) -> None:
    assert IpConnections.parse(text) == value
    assert IpConnections.parse(str(value)) == value


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:-1", "localhost:1", "::1:5", "[127.0.0.1]:5"]
)
def test_a_malformed_number_of_connections_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of connections; allowed: IP:NUMBER"):
        IpConnections.parse(text)


def test_a_zero_connection_limit_needs_an_override() -> None:
    with pytest.raises(ConfigError, match="refuses every client; allowed: 0 with --max-connections-per-ip-overrides"):
        Settings(limits=Limits(max_connections_per_ip_count=0))
    somebody = (IpConnections("127.0.0.1", 5),)
    Settings(limits=Limits(max_connections_per_ip_count=0, max_connections_per_ip_overrides=somebody))
