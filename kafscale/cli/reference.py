"""Reference pages of options; tests compare the committed pages with these.

kafscale config --reference >docs/reference/options.md
python -m kafscale.cli.reference >docs/reference/sql-options.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from kafscale.config import Option, Settings, options

OPTIONS_INTRODUCTION = """\
# Options of `kafscale serve`

Made from the declarations in `kafscale/config/` by `kafscale config --reference`.

Each option is a flag (`--chunk-pool-bytes 1GiB`), an environment variable (`KAFSCALE_CHUNK_POOL_BYTES=1GiB`) and a key
of the TOML file that `--config` or `KAFSCALE_CONFIG` names (`chunk-pool-bytes = "1GiB"`). A flag beats the environment,
which beats the file. `kafscale config` shows each value in effect and its source.

- A size is a number of bytes, or has a unit: KiB, MiB, GiB, TiB (powers of 1024), KB, MB, GB, TB (powers of 1000).
- A duration has a unit: us, ms, s, m, h, d. Only 0 needs none.
- A repeatable option takes several values, separated by commas. As a flag it may also be given several times, and in
  the file as a list.
- An address may be a URL without a path, such as `http://127.0.0.1:9644`. A listener may be written as in Kafka:
  `SSL://0.0.0.0:9093`.
- An empty environment variable is ignored. An unknown one that begins with `KAFSCALE_`, or an unknown key, is an error.
  Kubernetes' service links, such as `KAFSCALE_BROKER_PORT_9092_TCP` for a Service named `kafscale…`, are ignored;
  `enableServiceLinks: false` in the pod's specification turns them off.
- Credentials are not options. The S3 client finds them like any other AWS client.
"""

# The options by topic, in the order of the page. Each is in one section.
SECTIONS: Mapping[str, Sequence[str]] = {
    "The ten to know first": (
        *("listen", "advertised-listener", "admin-listen", "data-dir", "store", "s3-endpoint"),
        *("durability", "flush-interval", "chunk-pool-bytes", "default-partitions"),
    ),
    "Listeners, admin server and process": (
        *("listener-security-protocol", "admin-ssl", "admin-token-file", "console", "processes"),
        *("shutdown-timeout", "log-level", "log-format", "traces-endpoint"),
    ),
    "Object store": (
        *("namespace", "s3-region", "s3-path-style", "s3-create-bucket", "s3-ca-file", "s3-sse"),
        *("s3-concurrency", "s3-multipart-bytes", "store-timeout"),
    ),
    "Write-ahead log": (
        *("wal-sync-interval", "wal-segment-bytes", "wal-max-bytes"),
        *("s3-wal-interval", "s3-wal-min-interval", "s3-wal-flush-objects"),
    ),
    "Segments: flush, merge and deletion": (
        *("segment-bytes", "flush-objects-per-minute", "segment-merge-bytes", "segment-delete-delay"),
        *("compaction-check-interval", "log-cleaner-dedupe-buffer-size"),
    ),
    "Reading": ("cache-bytes", "cache-directory", "cache-disk-bytes", "readahead-bytes", "fetch-buffer-bytes"),
    "Topics": ("auto-create-topics", "max-message-bytes"),
    "Consumer groups": (
        *("offsets-topic-num-partitions", "offsets-retention", "group-initial-rebalance-delay"),
        *("group-min-session-timeout", "group-max-session-timeout", "group-consumer-heartbeat-interval"),
        *("max-group-members", "group-state-bytes"),
    ),
    "Transactions and idempotent producers": (
        *("transaction-max-timeout", "transaction-state-log-num-partitions", "producer-id-expiration"),
        *("max-producer-ids-per-partition", "max-producer-state-bytes"),
    ),
    "Several brokers": (
        *("broker-id", "several-brokers", "rack", "inter-broker-listener", "inter-broker-config"),
        "broker-session-timeout",
        "broker-store-timeout",
    ),
    "Access control and quotas": (
        *("authorizer", "super-user", "allow-everyone-if-no-acl-found"),
        *("producer-byte-rate", "consumer-byte-rate"),
    ),
    "TLS": (
        *("ssl-certificate-file", "ssl-key-file", "ssl-key-password-file", "ssl-client-ca-file", "ssl-client-auth"),
        *("ssl-principal-mapping-rules", "ssl-min-version", "ssl-ciphers"),
    ),
    "SASL": (
        *("sasl-mechanisms", "secret-key-file", "connections-max-reauth", "connection-failed-authentication-delay"),
        *("sasl-oauthbearer-jwks-endpoint-url", "sasl-oauthbearer-expected-issuer"),
        *("sasl-oauthbearer-expected-audience", "sasl-oauthbearer-sub-claim-name"),
        *("sasl-oauthbearer-required-scope", "sasl-oauthbearer-clock-skew"),
    ),
    "Limits of connections and requests": (
        *("max-connections", "max-connections-per-ip", "max-connections-per-ip-overrides", "connection-idle-timeout"),
        *("max-frame-bytes", "max-in-flight-requests", "queued-max-request-bytes"),
    ),
}

SQL_INTRODUCTION = """\
# Options of kafscale sql

Made from the code by `python -m kafscale.cli.reference`. A flag beats the environment. Options of the store are
those of [`kafscale serve`](options.md), also in the TOML file that `--config` names.
[How to query topics](../how-to/sql.md) shows them at work."""


def options_page() -> str:
    defaults, by_name = Settings(), {option.name: option for option in options()}
    sections = (
        "\n".join([f"## {title}\n", *_rows((by_name[name] for name in names), defaults)])
        for title, names in SECTIONS.items()
    )
    return "\n".join([OPTIONS_INTRODUCTION, "\n\n".join(sections), ""])


def _rows(section: Iterable[Option], defaults: Settings) -> Iterator[str]:
    yield "| option | default | allowed | what it does |"
    yield "|---|---|---|---|"
    for option in section:
        default = option.format(defaults.value(option))
        words = f"{option.help.text} *{option.help.why}*" if option.help.why else option.help.text
        shown_default = f"`{default}`" if default else ""
        yield f"| `{option.flag}` | {shown_default} | {_escape(option.allowed)} | {_escape(words)} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def sql_page() -> str:
    from kafscale.cli.sql import command as sql

    parts = [SQL_INTRODUCTION]
    for name, command in sql.commands.items():
        title = "kafscale sql [STATEMENT]" if name == "query" else f"kafscale sql {name}"
        rows = "\n".join(_sql_rows(command))
        parts.append(f"## {title}\n\n| option | variable and default | what it does |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _sql_rows(command: click.Command) -> Iterator[str]:
    for option in command.params:
        if isinstance(option, click.Option) and option.help is not None:
            text, _, details = option.help.partition("  [")
            yield f"| `{option.opts[0]}` | {details.removesuffix(']')} | {text} |".replace("[", "\\[")


if __name__ == "__main__":
    print(sql_page(), end="")
