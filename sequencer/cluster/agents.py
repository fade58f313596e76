"""The agents of the cluster: each registers with a lease and renews it. All agents see the same list.

An agent reads what changed in the list since its last read. Whichever agent finds that leases were not
checked lately compares them with the list. So a read costs what changed, not the number of agents.

Promises:
- A node id means the same Kafka addresses for ever, because clients remember both. An agent that restarts
  there keeps the node id. A second agent at the same addresses fences the first (`renew` of an older
  incarnation returns False).
- Only Postgres' clock counts.
- Only a new node id waits for a synchronous standby. A failover may lose a renewal, which the agent repeats.

An agent also gets here the secrets that prove it to its peers (`cache_ring/peers/peer_proof.py`). They are
only in Postgres: not in the commit journal, not in logs, not in `repr`. A database that is rebuilt from the
bucket has a new secret.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from storage.identifiers import NodeId

SQL = load_statements("agents")

FORGET_AFTER_S = 24 * 60 * 60.0
"""An address that was not seen for this long loses its row, so that short-lived containers leave no trace.
Its node id is not used again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAddress:
    """The address that the clients of one listener are told."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAddress:
    zone: str
    kafka_host: str
    kafka_port: int
    peer_host: str
    peer_port: int
    http_url: str
    listeners: tuple[NamedAddress, ...] = ()
    """All Kafka listeners. `kafka_host` and `kafka_port` are the first one's."""

    def of_listener(self, name: str) -> NamedAddress | None:
        return next((address for address in self.listeners if address.listener == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAgent:
    node_id: NodeId
    incarnation: int
    address: AgentAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The agents with a valid lease `age_s` before this was read, by node id."""

    agents: tuple[LiveAgent, ...]
    changes: int
    """The number of the last change that this includes."""
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSecret:
    """Agents of the cluster know it, strangers do not. It is only in Postgres."""

    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesToDrop:
    """An erasure took records out of objects that were made before this time: their pages go."""

    number: int
    made_before_ms: int


class Agents:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._peer_secrets: tuple[PeerSecret, ...] = ()
        self.lost_because: str | None = None
        """Why the bucket is not this database's, as of the last join or renewal
        (`sequencer/cluster/ownership.py`)."""
        self.pages_to_drop = PagesToDrop(number=0, made_before_ms=0)
        """As of the last join or renewal."""

    async def join(self, address: AgentAddress, lease_s: float) -> LiveAgent:
        """Registers this address, under the previous node id of its Kafka addresses if there is one.

        It may be repeated: that fences the earlier attempt.
        """
        rows = await self._database.run(
            SQL["join"],
            zone=address.zone,
            kafka_host=address.kafka_host,
            kafka_port=address.kafka_port,
            peer_host=address.peer_host,
            peer_port=address.peer_port,
            http_url=address.http_url,
            listeners=_listeners_text(address.listeners),
            lease_s=lease_s,
        )
        self._learn(rows[0])
        await self._database.run(SQL["forget_long_gone"], forget_after_s=FORGET_AFTER_S)
        await self._show(0.0)
        return _live_agent(rows[0])

    async def renew(self, node_id: NodeId, incarnation: int, lease_s: float, *, erased_to: int = 0) -> bool:
        """False: another incarnation has taken the address, or the row is gone. Join again.

        `erased_to`: the number of the last `pages_to_drop` that the agent has dropped."""
        rows = await self._database.run_local(
            SQL["renew"], node_id=node_id, incarnation=incarnation, lease_s=lease_s, erased_to=erased_to
        )
        if rows:
            self._learn(rows[0])
        return bool(rows)

    async def leave(self, node_id: NodeId, incarnation: int) -> None:
        """Ends the lease now, unless another incarnation holds it."""
        await self._database.run_local(SQL["leave"], node_id=node_id, incarnation=incarnation)
        await self._show(0.0)

    def peer_secrets(self) -> tuple[PeerSecret, ...]:
        """The valid secrets, newest first, as of the last join or renewal; none before the first."""
        return self._peer_secrets

    async def renew_peer_secret(self) -> None:
        """Makes a new secret. The previous one stays valid until the next renewal; all older ones are
        void."""
        await self._database.run(SQL["renew_peer_secret"])

    async def live(self) -> tuple[LiveAgent, ...]:
        """Returns all agents with a valid lease, by node id. It reads all rows: for people, not for
        timers."""
        return tuple(_live_agent(row) for row in await self._database.run_local(SQL["live"]))

    async def shown(self, before: Shown | None, *, not_older_than_s: float) -> Shown:
        """Returns the list of now, or of that long ago. `before`, this database's last answer, makes it
        cheap."""
        found = await self._shown_since(before)
        if not 0.0 <= found.age_s <= not_older_than_s:
            await self._show(not_older_than_s)
            found = await self._shown_since(found)
        return found

    async def _shown_since(self, before: Shown | None) -> Shown:
        since = -1 if before is None else before.changes
        rows = await self._database.run_local(SQL["shown"], since=since)
        first = rows[0]
        agents = () if before is None else before.agents
        if first.node_id is not None:
            known = {agent.node_id: agent for agent in agents}
            for row in rows:
                if row.incarnation is None:
                    known.pop(row.node_id, None)
                else:
                    known[row.node_id] = _live_agent(row)
            agents = tuple(known[node_id] for node_id in sorted(known))
        if before is not None and (len(agents) != first.alive or first.changes < since):
            return await self._shown_since(None)  # rows were deleted, or this is another database
        return Shown(agents=agents, changes=first.changes, age_s=first.age_s)

    async def _show(self, not_older_than_s: float) -> None:
        await self._database.run_local(SQL["show"], not_older_than_s=not_older_than_s)

    def _learn(self, row: Row) -> None:
        self.lost_because = row.lost_because
        self.pages_to_drop = PagesToDrop(number=row.erasure, made_before_ms=row.erased_before_ms)
        self._peer_secrets = tuple(PeerSecret(value=value) for value in row.peer_secrets or ())


def _live_agent(row: Row) -> LiveAgent:
    return LiveAgent(
        node_id=NodeId(row.node_id),
        incarnation=row.incarnation,
        address=AgentAddress(
            zone=row.zone,
            kafka_host=row.kafka_host,
            kafka_port=row.kafka_port,
            peer_host=row.peer_host,
            peer_port=row.peer_port,
            http_url=row.http_url,
            listeners=tuple(
                NamedAddress(listener=listener, host=host, port=port)
                for listener, host, port in json.loads(row.listeners)
            ),
        ),
    )


def _listeners_text(listeners: Sequence[NamedAddress]) -> str:
    return json.dumps([[one.listener, one.host, one.port] for one in listeners])
