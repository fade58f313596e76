"""Tidelog: agents with the default settings, an embedded Postgres with fsync, and MinIO or a local
directory.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import psycopg

from agent.settings import AgentSettings
from benchmarks.endpoints import Endpoint
from benchmarks.load.producers import Target
from benchmarks.systems.meters import Meters, scrape, total
from benchmarks.systems.store_counters import store_counters
from benchmarks.systems.system import System
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment

_LINGER_MS = str(AgentSettings.model_fields["linger_ms"].default)
_TRANSACTIONS = "SELECT sum(xact_commit)::bigint FROM pg_stat_database"


@contextmanager
def tidelog(
    directory: Path,
    endpoint: Endpoint | None,
    zones: tuple[str, ...] = ("a",),
    environment: Mapping[str, str] | None = None,
) -> Iterator[System]:
    """An agent for each zone. Without an endpoint, objects are files of a local directory. Each has a new
    database and a new cluster name, so several may share an endpoint.
    """
    store = endpoint.as_environment() if endpoint else {}
    given = {
        "TIDELOG_LINGER_MS": _LINGER_MS,
        "TIDELOG_PUT_USD_PER_MILLION": "5",  # as on S3, not as the stack has it
        "TIDELOG_CLUSTER": f"benchmark-{uuid4().hex}",
        "TIDELOG_OWNERSHIP_RATCHET_S": "60",  # as in production, not as in the development stack
        **store,
    }
    settings = StackSettings(
        environment=Environment.of_process(),
        data_dir=directory,
        agents=len(zones),
        zones=zones,
        store="local",
        agent_environment={**given, **(environment or {})},
    )
    with Stack(settings) as stack:
        yield system_of(stack, endpoint)


def system_of(stack: Stack, endpoint: Endpoint | None) -> System:
    """A stack that already runs."""
    agents = {agent.address.zone: agent for agent in stack.agents}
    postmaster = int((stack.data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
    pids = {zone: agent.pid for zone, agent in agents.items()} | {"postgres": postmaster}
    counters: list[Callable[[], Mapping[str, float]]] = [partial(_transactions, stack.addresses.database_url)]
    counters += [partial(_agent_counters, zone, agent.address.http_url) for zone, agent in agents.items()]
    if endpoint:
        pids["store"] = endpoint.pid
        counters.append(partial(store_counters, endpoint))
    return System(
        name="tidelog" if endpoint else "tidelog-local",
        targets={
            zone: Target(
                host=agent.address.host, port=agent.address.kafka_port, client_id=f"tidelog_zone={zone}"
            )
            for zone, agent in agents.items()
        },
        meters=Meters({part: pid for part, pid in pids.items() if pid is not None}, counters),
        endpoint=endpoint,
        database_url=stack.addresses.database_url,
        stack=stack,
    )


def _transactions(database_url: str) -> dict[str, float]:
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        row = connection.execute(_TRANSACTIONS).fetchone()
    return {"transactions": float(row[0]) if row else 0.0}


def _agent_counters(zone: str, http_url: str) -> dict[str, float]:
    samples = scrape(f"{http_url}/metrics")
    return {
        f"agent_puts:{zone}": total(samples, "tidelog_puts_total"),
        f"agent_gets:{zone}": total(samples, "tidelog_store_gets_total"),
        f"commits:{zone}": total(samples, "tidelog_commits_total"),
    }
