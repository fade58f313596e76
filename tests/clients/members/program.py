"""What all member programs share: arguments, events on stdout, orders on stdin.

Events are JSON lines. `assigned` has `added` and `owned`, `revoked` and `lost` have `removed` and `owned`,
each a list of [topic, partition]; `record` has `topic`, `partition`, `offset`, `value`; `committed` has
`offsets` ([topic, partition, offset]); `error` has `message`. Orders are lines: `commit`, `seek TOPIC
PARTITION OFFSET`, `leave` (also the end of stdin). A `--topics` that begins with ^ is a regular expression.
"""

import argparse
import json
import os
import queue
import sys
import threading
from collections.abc import Iterable
from typing import Any

Place = tuple[str, int]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("member",))
    parser.add_argument("--servers", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topics", required=True, type=lambda given: given.split(","))
    parser.add_argument("--protocol", default="classic")
    parser.add_argument("--strategy", default="range")
    parser.add_argument("--instance")
    parser.add_argument("--client-id", default="member")
    parser.add_argument("--session-timeout-ms", type=int, default=45_000)
    parser.add_argument("--heartbeat-ms", type=int, default=500)
    parser.add_argument("--max-poll-ms", type=int, default=60_000)
    parser.add_argument("--reset", default="earliest")
    parser.add_argument(
        "--assign", type=int, help="no membership: so many partitions of the first topic, taken by hand"
    )
    return parser.parse_args()


def orders() -> "queue.SimpleQueue[list[str]]":
    """The orders as they come, split into words; the end of stdin is `leave`."""
    found: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            found.put(line.split())
        found.put(["leave"])

    threading.Thread(target=read, daemon=True).start()
    return found


class Teller:
    """Prints events, and keeps what the member owns."""

    def __init__(self) -> None:
        self._owned: set[Place] = set()

    def assigned(self, added: Iterable[Place], *, all_of_it: bool = False) -> None:
        """`all_of_it`: the client reports everything that it owns now, not what was added."""
        new = set(added)
        self._owned = new if all_of_it else self._owned | new
        self._tell("assigned", added=sorted(new), owned=sorted(self._owned))

    def revoked(self, removed: Iterable[Place], event: str = "revoked") -> None:
        gone = set(removed)
        self._owned -= gone
        self._tell(event, removed=sorted(gone), owned=sorted(self._owned))

    def record(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        self._tell("record", topic=topic, partition=partition, offset=offset, value=(value or b"").decode())

    def committed(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        self._tell("committed", offsets=sorted(offsets))

    def error(self, error: object) -> None:
        self._tell("error", message=f"{type(error).__name__}: {error}")

    @staticmethod
    def _tell(event: str, **values: Any) -> None:
        print(json.dumps({"event": event, **values}), flush=True)


def end() -> None:
    """Exit at once, so that threads of a client do not keep the process alive."""
    sys.stdout.flush()
    os._exit(0)
