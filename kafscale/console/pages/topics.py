"""Topics: their list, partitions and configs, and what creates, changes and deletes them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.admin import (
    BROKER_DEFAULT,
    TopicToCreate,
    add_partitions,
    alter_topic_configs,
    create_topic,
    delete_topic,
    topic_configs,
)
from kafscale.client.brokers import cluster_operations
from kafscale.client.client import Client
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.pages.fields import whole_number
from kafscale.console.rendering import path_part
from kafscale.console.rights import missing_right
from kafscale.console.topic_list import TopicPage, TopicQuery
from kafscale.errors import ConfigError, KafkaError
from kafscale.login.failures import check
from kafscale.security.acls import AclOperation
from kafscale.wire.messages.configs import DescribeConfigsResourceResult
from kafscale.wire.messages.topics import MetadataResponseTopic

DEFAULT_SOURCE = 5
SOURCES = {1: "topic", 2: "broker, changed", 3: "cluster, changed", 4: "broker's settings", DEFAULT_SOURCE: "default"}
COUNT_MAX = 1_000_000


async def topic_list(page: PageRequest) -> Response:
    client = await page.client()
    found = await _read_page(page, client)
    return page.render("topics.html", found=found, missing=await _missing_create(client))


async def topic_rows(page: PageRequest) -> Response:
    """Answer with the table alone, for its reload."""
    return page.render("topic_rows.html", found=await _read_page(page, await page.client(), is_live=True))


async def _read_page(page: PageRequest, client: Client, *, is_live: bool = False) -> TopicPage:
    return await page.session.cluster.topics.page(client, TopicQuery.read(page.request.query_params), is_live=is_live)


async def _missing_create(client: Client) -> str:
    """Return the ACL that a user lacks who may not create any topic. One for a name may still allow that name."""
    try:
        operations = await cluster_operations(client)
    except KafkaError:
        return ""  # a broker that does not know the request
    return missing_right(operations, AclOperation.CREATE, "the cluster or the topic's name")


@attrs.frozen(kw_only=True)
class TopicRights:
    """The ACLs that the user lacks for a topic, empty where none is missing."""

    read: str
    write: str
    alter: str
    alter_configs: str
    delete: str

    @classmethod
    def of(cls, topic: MetadataResponseTopic) -> TopicRights:
        def missing(operation: AclOperation) -> str:
            return missing_right(topic.topic_authorized_operations, operation, f"topic {topic.name}")

        return cls(
            read=missing(AclOperation.READ),
            write=missing(AclOperation.WRITE),
            alter=missing(AclOperation.ALTER),
            alter_configs=missing(AclOperation.ALTER_CONFIGS),
            delete=missing(AclOperation.DELETE),
        )


async def described(page: PageRequest) -> tuple[Client, MetadataResponseTopic]:
    """Return the client and the topic of the path, with the user's rights. Raises KafkaError, BrokerUnavailable."""
    client = await page.client()
    name = page.request.path_params["name"]
    (topic,) = (await client.metadata([name], with_rights=True)).topics
    check(topic.error_code, f"topic '{name}'")
    topic.partitions.sort(key=lambda partition: partition.partition_index)
    return client, topic


async def topic_page(page: PageRequest) -> Response:
    client, topic = await described(page)
    (facts,) = await page.session.cluster.topics.facts.read(client, [topic])
    return page.render("topic.html", facts=facts, rights=TopicRights.of(topic))


async def topic_figures(page: PageRequest) -> Response:
    """Answer with numbers and partitions alone, for their reload."""
    client, topic = await described(page)
    (facts,) = await page.session.cluster.topics.facts.read(client, [topic])
    return page.render("topic_figures.html", facts=facts)


@attrs.frozen(kw_only=True)
class ConfigRow:
    """A config as the page shows it; `default` is None where the broker does not tell it."""

    name: str
    value: str | None
    default: str | None
    source: str
    documentation: str | None
    is_own: bool
    is_read_only: bool

    @classmethod
    def of(cls, config: DescribeConfigsResourceResult) -> ConfigRow:
        defaults = [synonym.value for synonym in config.synonyms if synonym.source == DEFAULT_SOURCE]
        is_default = config.config_source == DEFAULT_SOURCE
        return cls(
            name=config.name,
            value="(hidden)" if config.is_sensitive else config.value,
            default=defaults[-1] if defaults else (config.value if is_default else None),
            source=SOURCES.get(config.config_source, "unknown"),
            documentation=config.documentation,
            is_own=config.config_source == 1,
            is_read_only=config.read_only,
        )


async def config_page(page: PageRequest) -> Response:
    client, topic = await described(page)
    found = await topic_configs(client, topic.name or "", with_documentation=True)
    rows = sorted(map(ConfigRow.of, found), key=lambda row: (not row.is_own, row.name))
    return page.render("topic_configs.html", topic=topic, rows=rows, rights=TopicRights.of(topic))


async def create(page: PageRequest) -> Response:
    name = str(page.form.get("name", "")).strip()
    topic = TopicToCreate(
        name=name,
        partition_count=_count(page, "partitions"),
        replication_factor=_count(page, "replication"),
        configs=parse_configs(str(page.form.get("configs", ""))),
    )
    await create_topic(await page.client(), topic)
    return page.redirect(f"/topics/{path_part(name)}", f"Topic {name} was created.")


async def change_config(page: PageRequest) -> Response:
    """Set a config, or with `reset` restore its default."""
    name, config = page.request.path_params["name"], str(page.form.get("config", ""))
    value = None if page.form.get("reset") else str(page.form.get("value", ""))
    await alter_topic_configs(await page.client(), name, {config: value})
    done = "has its default again" if value is None else f"is {value} now"
    return page.redirect(f"/topics/{path_part(name)}/configs", f"{config} {done}.")


async def change_partitions(page: PageRequest) -> Response:
    name, count = page.request.path_params["name"], _count(page, "partitions")
    await add_partitions(await page.client(), name, count)
    return page.redirect(f"/topics/{path_part(name)}", f"Topic {name} has {count} partitions now.")


async def delete(page: PageRequest) -> Response:
    """Delete the topic if its name was typed."""
    name = page.request.path_params["name"]
    if str(page.form.get("confirm", "")).strip() != name:
        raise ConfigError(f"Type {name} to delete this topic. Nothing was deleted.")
    await delete_topic(await page.client(), name)
    return page.redirect("/topics", f"Topic {name} was deleted.")


def _count(page: PageRequest, field: str) -> int:
    """Return a number of a form, BROKER_DEFAULT for an empty field. Raises ConfigError."""
    text = str(page.form.get(field, "")).strip()
    return whole_number(text, field, least=1, most=COUNT_MAX) if text else BROKER_DEFAULT


def parse_configs(text: str) -> Mapping[str, str]:
    """Read lines of NAME=VALUE. Raises ConfigError."""
    configs = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, separator, value = line.partition("=")
        if not separator:
            raise ConfigError(f"'{line}' is not a config: write a line such as retention.ms=86400000 for each")
        configs[name.strip()] = value.strip()
    return configs


ROUTES = [
    Route("/topics", view(topic_list)),
    Route("/topics", action(create), methods=["POST"]),
    Route("/fragments/topics", view(topic_rows)),
    Route("/fragments/topics/{name}", view(topic_figures)),
    Route("/topics/{name}", view(topic_page)),
    Route("/topics/{name}/configs", view(config_page)),
    Route("/topics/{name}/configs", action(change_config), methods=["POST"]),
    Route("/topics/{name}/partitions", action(change_partitions), methods=["POST"]),
    Route("/topics/{name}/delete", action(delete), methods=["POST"]),
]
