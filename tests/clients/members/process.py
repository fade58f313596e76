"""A member's process as a test uses it: its events so far, waits with a deadline, orders, and its end."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.clients.members.program import Place

DEADLINE_S = 120.0
_REFUSALS, _BETWEEN_STARTS_S = 4, 1.0
_REPOSITORY = Path(__file__).parents[3]

Event = dict[str, Any]
T = TypeVar("T")


class Member:
    """One running member. Its events are kept from its first to its last."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.events: list[Event] = []
        self._happened = threading.Condition()
        self._errors: list[str] = []
        self._process = asked_again(
            lambda: subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                bufsize=1,
                cwd=_REPOSITORY,
            )
        )
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read_events, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def owned(self) -> set[Place]:
        """As last told."""
        with self._happened:
            told = [event["owned"] for event in self.events if "owned" in event]
        return {(topic, partition) for topic, partition in told[-1]} if told else set()

    @property
    def records(self) -> list[Event]:
        return self.told("record")

    def told(self, kind: str, since: int = 0) -> list[Event]:
        with self._happened:
            return [event for event in self.events[since:] if event["event"] == kind]

    def gave_up(self, since: int = 0) -> set[Place]:
        """Everything revoked or lost after its first `since` events."""
        events = self.told("revoked", since) + self.told("lost", since)
        return {(topic, partition) for event in events for topic, partition in event["removed"]}

    def until(self, condition: Callable[["Member"], object], what: str) -> None:
        """Waits for the event. Raises AssertionError with all events of the member."""
        wait_until(lambda: bool(condition(self)), what, [self])

    def order(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def commit(self) -> dict[Place, int]:
        """What was committed."""
        before = len(self.events)
        self.order("commit")
        self.until(
            lambda member: member.told("committed", before) or member.told("error", before), "an answer"
        )
        assert not self.told("error", before), self.describe()
        (event,) = self.told("committed", before)
        return {(topic, partition): offset for topic, partition, offset in event["offsets"]}

    def leave(self) -> None:
        """Close cleanly."""
        self.order("leave")
        self._process.wait(DEADLINE_S)
        assert self._process.returncode == 0, self.describe()

    def kill(self) -> None:
        """As a machine dies."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(DEADLINE_S)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        if self.is_running:
            self.kill()
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def describe(self) -> str:
        with self._happened:
            last = [event for event in self.events if event["event"] != "record"][-12:]
            told = "".join(f"\n    {event}" for event in last)
            return f"{self.name} ({self._process.poll()}):{told}\n    stderr: {' '.join(self._errors[-12:])}"

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                with self._happened:
                    self.events.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._happened:
                self._errors.append(line.rstrip())
                del self._errors[:-200]


def asked_again(start: Callable[[], T]) -> T:
    """`start()`, which starts a program: of hundreds of starts of one program a machine may refuse a single
    one.
    """
    for _ in range(_REFUSALS):
        try:
            return start()
        except OSError as refusal:
            warnings.warn(f"asked again after {refusal!r}", stacklevel=2)
            time.sleep(_BETWEEN_STARTS_S)
    return start()


def wait_until(condition: Callable[[], bool], what: str, members: Sequence[Member]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > until or not all(member.is_running for member in members):
            raise AssertionError(f"{what}: not so\n" + "\n".join(member.describe() for member in members))
        time.sleep(0.02)


@contextlib.contextmanager
def members_of(command: Sequence[str], *common: str) -> Iterator[Callable[..., Member]]:
    """`start(name, **options)` runs a member: options are those of `program.py`, with underscores."""
    started: list[Member] = []

    def start(name: str, **options: Any) -> Member:
        given = [
            part
            for option, value in options.items()
            for part in (f"--{option.replace('_', '-')}", str(value))
        ]
        member = Member(name, [*command, "member", *common, *given])
        started.append(member)
        return member

    try:
        yield start
    finally:
        for member in started:
            member.end()


def python(module: str) -> list[str]:
    """The command line of a member program in Python."""
    return [sys.executable, "-W", "ignore", "-m", f"tests.clients.members.{module}"]
