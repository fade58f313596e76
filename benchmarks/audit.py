"""`python -m benchmarks.audit`: what an event of the audit trail costs an agent, in CPU time on one core. The
lines go to a file.
"""

import logging
import tempfile
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from agent.kafka.audited_changes import CHANGES
from agent.metrics import Metrics
from agent.security.audit.audit import Audit
from agent.security.audit.events import Asker, Resource
from agent.security.audit.settings import AuditSettings

_TIMES = 20_000
_ASKER = Asker(principal="User:alice", address="10.0.0.1:5000", listener="OUTSIDE", client_id="app-1")
_TOPIC = Resource(type="TOPIC", name="orders", change={"partitions": "3", "retention.ms": "86400000"})
_DENIED = Resource(type="TOPIC", name="orders", outcome="DENIED")
_PRODUCE = 0


def _cpu_us(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    for _ in range(_TIMES):
        work()
    return (time.process_time() - began_s) / _TIMES * 1e6


def main() -> None:
    trail = logging.getLogger("tidelog.audit")
    trail.setLevel(logging.INFO)
    trail.propagate = False
    table = Table("event", "CPU µs", title="The audit trail")
    with tempfile.TemporaryFile("w") as lines:
        trail.handlers[:] = [logging.StreamHandler(lines)]
        plenty = AuditSettings(
            audit_events_per_s=1e9, audit_refusals_per_s=1e9, audit_refusals_of_host_per_s=1e9
        )
        audit = Audit(plenty, Metrics(), time.monotonic)
        bounded = Audit(AuditSettings(audit_refusals_of_host_per_s=0.001), Metrics(), time.monotonic)
        works: dict[str, Callable[[], object]] = {
            "a login": lambda: audit.logged_in(_ASKER, "SCRAM-SHA-512"),
            "a change of a topic": lambda: audit.changed(_ASKER, "CreateTopics", [_TOPIC]),
            "a refusal": lambda: audit.decided(_ASKER, "Produce", "WRITE", _DENIED),
            "a refusal beyond the bound": lambda: bounded.decided(_ASKER, "Produce", "WRITE", _DENIED),
            "a request of another API": lambda: _PRODUCE in CHANGES,
        }
        for name, work in works.items():
            table.add_row(name, f"{_cpu_us(work):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
