"""What an engine of `tidelog sql` is, and what it answers.

Promises of every engine:
- An answer is a stream of Arrow batches. Its memory does not grow with its rows.
- `cancel` ends the statement that runs, from any thread.
- A statement that would write, or read a file of this machine, is refused.
"""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

_BATCHES_AHEAD = 2
_LOOK_S = 0.2
_CANCEL_S = 10.0
NAMESPACE = "topics"


class StatementFailed(UserError):
    """The statement is wrong, or could not be run."""


class NotInDuckDB(Exception):
    """DuckDB cannot run this statement, Spark perhaps can. The message says why, for people."""


class StatementCancelled(Exception):
    """Somebody pressed Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    engine: str
    reason: str
    """Why this engine, in a few words."""
    schema: "pa.Schema"
    batches: Iterator["pa.RecordBatch"]


class Engine(Protocol):
    name: str

    def cancel(self) -> None:
        """Ends what runs, which then fails. Does nothing if nothing runs."""

    def close(self) -> None:
        """Gives back what the engine holds."""


class Run:
    """One statement in a thread, so that Ctrl-C and the time limit reach the main thread while it waits.

    At most `_BATCHES_AHEAD` batches wait for the reader.
    """

    def __init__(self, answer: Any, cancel: Any, timeout_s: float) -> None:
        """`answer()` makes the answer, in the thread; `cancel()` ends it, from this one."""
        self._answer = answer
        self._cancel = cancel
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._ready: queue.Queue[Any] = queue.Queue(_BATCHES_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="statement", daemon=True)
        self._thread.start()

    def answer(self) -> Answer:
        """The answer, whose batches come from this run. Raises what the engine raises, and
        StatementCancelled.
        """
        found: Answer = self._next()
        return Answer(engine=found.engine, reason=found.reason, schema=found.schema, batches=self._batches())

    def stop(self) -> None:
        """Ends the statement, if it still runs, and waits for its thread."""
        self._stopped.set()
        self._thread.join(_LOOK_S)
        until = time.monotonic() + _CANCEL_S
        while self._thread.is_alive() and time.monotonic() < until:
            self._cancel()
            self._empty()
            self._thread.join(_LOOK_S)

    def _batches(self) -> Iterator[Any]:
        while (batch := self._next()) is not None:
            yield batch

    def _next(self) -> Any:
        try:
            while True:
                try:
                    found = self._ready.get(timeout=_LOOK_S)
                    break
                except queue.Empty:
                    if time.monotonic() > self._deadline:
                        self.stop()
                        raise StatementFailed(
                            f"The statement took longer than {self._timeout_s:g} s, and was cancelled.",
                            "Give it more with TIDELOG_SQL_TIMEOUT_S, or read less: filter by partition, "
                            "offset or timestamp.",
                        ) from None
        except KeyboardInterrupt:
            self.stop()
            raise StatementCancelled from None
        if isinstance(found, BaseException):
            raise found
        return found

    def _work(self) -> None:
        try:
            answer = self._answer()
            self._put(answer)
            for batch in answer.batches:
                self._put(batch)
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - the reader raises it
            self._put(error)

    def _put(self, what: Any) -> None:
        while not self._stopped.is_set():
            try:
                self._ready.put(what, timeout=_LOOK_S)
                return
            except queue.Full:
                continue

    def _empty(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()
