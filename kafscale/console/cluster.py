"""A user's access to the cluster by one client, which connects when it must and again after a failure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from kafscale.client.client import Client
from kafscale.config import Address
from kafscale.console.topic_list import TopicList
from kafscale.errors import BrokerUnavailable
from kafscale.login.security import ClientSecurity

CLIENT_ID = "kafscale-console"
CONNECT_SECONDS = 5.0  # for each broker of the bootstrap list: a page must say soon that none answers


@attrs.define(eq=False, repr=False)
class ClusterAccess:
    """A cluster as one user sees it. Close it at the end of the session."""

    bootstrap: Sequence[Address]
    security: ClientSecurity
    topics: TopicList = attrs.field(factory=TopicList, init=False)
    _client: Client = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._client = Client(bootstrap=self.bootstrap[0], client_id=CLIENT_ID, security=self.security)

    async def client(self) -> Client:
        """Return the client, connected to the first broker that answers. Raises BrokerUnavailable, KafkaError."""
        client = self._client
        failure = BrokerUnavailable(f"{client.bootstrap} does not answer")
        for address in (client.bootstrap, *(other for other in self.bootstrap if other != client.bootstrap)):
            with trio.move_on_after(CONNECT_SECONDS):
                try:
                    await client.connection_to(address)
                except BrokerUnavailable as exc:
                    failure = exc
                else:
                    client.bootstrap = address
                    return client
        raise failure

    async def aclose(self) -> None:
        await self._client.aclose()
