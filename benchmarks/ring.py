"""What a change of membership costs an agent: `python -m benchmarks.ring`.

A rolling restart of a cluster: again and again, one agent leaves and one comes with a new address. It
measures the CPU time of what an agent does with the new view on its event loop: the ring, and who watches
whom. For comparison, it also makes the ring from scratch, as each change did before.
"""

import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from cache_ring.ring.ring import Ring
from cache_ring.ring.suspects import Suspects
from cache_ring.settings import CacheRingSettings
from sequencer.cluster.agents import AgentAddress, LiveAgent
from storage.identifiers import NodeId

_SIZES = (10, 100, 1_000)
_CHANGES = 200
_ZONES = "abc"


def an_agent(number: int) -> LiveAgent:
    address = AgentAddress(
        zone=_ZONES[number % len(_ZONES)],
        kafka_host=f"agent-{number}",
        kafka_port=9092,
        peer_host=f"agent-{number}",
        peer_port=9093,
        http_url=f"http://agent-{number}",
    )
    return LiveAgent(node_id=NodeId(number), incarnation=1, address=address)


def cpu_ms(work: Callable[[], object]) -> float:
    started_s = time.process_time()
    work()
    return (time.process_time() - started_s) * 1000


def changes(agents: int) -> tuple[list[float], list[float]]:
    """CPU milliseconds per change: of the ring, and of the ring together with the order of who watches
    whom.
    """
    live = [an_agent(number) for number in range(1, agents + 1)]
    ring, suspects = Ring.of(live), Suspects(CacheRingSettings())
    self_ = (live[-1].node_id, 1)
    of_rings, of_all = [], []
    for number in range(_CHANGES):
        if number % 2:
            live.insert(-1, an_agent(agents + 1 + number))
        else:
            live.pop(0)
        started_s = time.process_time()
        ring = Ring.of(live, before=ring)
        made_s = time.process_time()
        suspects.looked(self_, [(agent.node_id, agent.incarnation) for agent in ring.agents], float(number))
        of_rings.append((made_s - started_s) * 1000)
        of_all.append((time.process_time() - started_s) * 1000)
    return of_rings, of_all


def main() -> None:
    table = Table(
        "agents",
        "ring made from scratch",
        "ring made from the one before",
        "with who watches whom",
        "the longest of these",
        title=f"CPU ms per change of membership, {_CHANGES} changes",
    )
    for agents in _SIZES:
        live = [an_agent(number) for number in range(1, agents + 1)]
        whole = cpu_ms(lambda live=live: Ring.of(live))  # type: ignore[misc]
        of_rings, of_all = changes(agents)
        cells = (whole, sum(of_rings) / _CHANGES, sum(of_all) / _CHANGES, max(of_all))
        table.add_row(f"{agents:,}", *(f"{cell:.2f}" for cell in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
