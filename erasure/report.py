"""What an erasure did, and how far it is: values without behaviour."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal[
    "reading the log",
    "reading the history",
    "looking for old copies",
    "waiting for other jobs",
    "waiting for old objects to be deleted",
    "waiting for agents to drop cached pages",
]


class ErasureFailed(Exception):
    """The erasure cannot finish now. Nothing is half done: run it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureProgress:
    """`done` of `total`; None: unknown. In bytes while the log is read, else in objects or files."""

    stage: Stage
    done: int = 0
    total: int | None = None


OnProgress = Callable[[ErasureProgress], None]


@dataclass(slots=True, kw_only=True)
class ErasureReport:
    """What one call found and rewrote. A call that goes on after a killed one counts its own work."""

    topic: str
    keys: int
    raw_records: int = 0
    """Records taken out of the log's objects."""
    history_records: int = 0
    """Rows taken out of history files. A record may be in both."""
    raw_bytes_read: int = 0
    objects_rewritten: int = 0
    """Objects of the log whose runs were all moved into new ones, also runs of other topics."""
    objects_written: int = 0
    bytes_written: int = 0
    """Of the new objects of the log."""
    files_read: int = 0
    files_rewritten: int = 0
    passes: int = 0
    """Over the log; the last one found nothing."""
    took_s: float = 0.0
