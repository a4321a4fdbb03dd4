"""The network between the brokers of a simulated cluster, with links that can be cut.

    links = Links(running=…)
    links.connect_from(1)                   a broker's way to connect to others
    links.cuts.add((1, 2))                  drops everything that 1 sends to 2, on any connection
    links.late.is_kept = True               delivers it once the link is whole again instead

A stopped broker refuses connections; one that starts, or is suspended, accepts them and does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.cluster.membership.peers.peer_connections import Connect, PeerConnection
from kafscale.cluster.membership.records import BrokerRecord
from kafscale.errors import BrokerUnavailable
from tests.devtools.fakes.cut_stream import CutStream, Late
from tests.devtools.world.simulated_broker import ADDRESS, SimulatedBroker
from tests.devtools.world.weather import Weather

STARTING_POLL_SECONDS = 0.05


@attrs.define(eq=False)
class Links:
    """`running` returns a broker's newest life unless that has ended. Sent data is on its way for `seconds`."""

    running: Callable[[int], SimulatedBroker | None]
    seconds: float = 0.0
    cuts: set[tuple[int, int]] = attrs.field(factory=set)
    late: Late = attrs.field(factory=Late)

    def connect_from(self, ours: int) -> Connect:
        async def connect(theirs: int, _record: BrokerRecord) -> PeerConnection:
            while True:
                if {(ours, theirs), (theirs, ours)} & self.cuts:
                    await trio.sleep_forever()
                life = self.running(theirs)
                if life is None:
                    await trio.lowlevel.checkpoint()
                    raise BrokerUnavailable(f"can't connect to broker {theirs}") from ConnectionRefusedError()
                if life.is_ready:
                    break
                await trio.sleep(STARTING_POLL_SECONDS)
            stream = CutStream(life.open_stream(), self.cuts, ours, theirs, self.late, self.seconds)
            return await Connection.over(stream, ADDRESS)

        return connect

    async def trouble(self, broker_ids: Sequence[int], random: Random, weather: Weather) -> None:
        """Cut a broker off from another one, or from all, in one direction or both, again and again.

        Data sent meanwhile is lost, or late.
        """
        while True:
            await trio.sleep(random.expovariate(1 / weather.links_mean_seconds))
            one = random.choice(broker_ids)
            others = [broker_id for broker_id in broker_ids if broker_id != one]
            if random.random() < 0.5:
                others = [random.choice(others)]
            ways = random.choice([(1, 0), (0, 1), (1, 1)])
            for other in others:
                self.cuts.update([(one, other)] * ways[0] + [(other, one)] * ways[1])
            self.late.is_kept = weather.links_late_probability > 0 and random.random() < weather.links_late_probability
            try:
                await trio.sleep(random.uniform(0, weather.links_cut_max_seconds))
            finally:
                self.cuts.clear()
                self.late.arrive()
