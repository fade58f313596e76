"""The supervisor behind `tidelog dev`: starts a stack, prints how to use it, and restarts processes that die,
until a signal ends it.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from rich.console import Console

from tidelog.devstack.stack import Stack, StackSettings

_LOOK_EVERY_S = 0.25
_SHORTEST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_FORGIVEN_AFTER_S = 60.0


def run_dev(settings: StackSettings, console: Console) -> None:
    """Returns after SIGINT, SIGTERM or SIGHUP, with everything stopped. Raises `UserError` if the stack does
    not start.
    """
    stopping, up = threading.Event(), threading.Event()
    with _signals_set(stopping, up):
        stack = Stack(settings, on_step=lambda step: _tell(console, f"{step} ..."))
        stack.start()
        up.set()
        try:
            _introduce(stack, console)
            _watch_children(stack, console, stopping)
        finally:
            console.print("Stopping: agents flush what they hold.")
            stack.stop()
    console.print(f"[green]Stopped.[/] The data stays in {stack.data_dir}.", soft_wrap=True)


def _watch_children(stack: Stack, console: Console, stopping: threading.Event) -> None:
    """Pauses between restarts: the pause doubles while a child keeps dying, and shrinks once it has run for
    a while.
    """
    pause_s = [_SHORTEST_PAUSE_S] * len(stack.children)
    due: list[float | None] = [None] * len(stack.children)
    started = [time.monotonic()] * len(stack.children)
    while not stopping.wait(_LOOK_EVERY_S):
        now = time.monotonic()
        for index, child in enumerate(stack.children):
            if child.pid is not None:
                continue
            at = due[index]
            if at is None:
                if now - started[index] > _FORGIVEN_AFTER_S:
                    pause_s[index] = _SHORTEST_PAUSE_S
                due[index] = now + pause_s[index]
                _tell(
                    console,
                    f"{child.name} ended with status {child.exit_status}; restarting in "
                    f"{pause_s[index]:g} s. Its log: {child.log_file}",
                )
                pause_s[index] = min(2 * pause_s[index], _LONGEST_PAUSE_S)
            elif now >= at:
                stack.spawn(index)
                due[index] = None
                started[index] = now


def _introduce(stack: Stack, console: Console) -> None:
    console.print("[bold green]Tidelog is ready.[/]")
    for agent in stack.agents:
        address = agent.address
        _tell(
            console,
            f"  {address.name}  zone {address.zone}  Kafka {address.bootstrap}  HTTP {address.http_url}",
        )
    if stack.history is not None:
        _tell(console, f"  history  keeps the topics' tables fresh; its log: {stack.history.log_file}")
    _tell(console, f"  data     {stack.data_dir}  (logs/ has the agents' logs)")
    _tell(console, f"  store    {stack.addresses.store_url}")
    first = stack.agents[0].address.bootstrap
    python = (
        f"from confluent_kafka import Producer as P; p = P({{'bootstrap.servers': '{first}'}}); "
        "p.produce('greetings', b'hello'); p.flush()"
    )
    console.print("[bold]Try it[/] from another terminal in this directory:")
    for line in (
        "echo hello | tidelog produce greetings",
        "tidelog consume greetings --from-beginning",
        (
            "tidelog consume greetings --group readers --from-beginning --idle-s 5; tidelog groups describe "
            "readers"
        ),
        f"kcat -b {first} -t greetings -C -o beginning -e",
        f'python -c "{python}"',
        f"kafka-console-producer.sh --bootstrap-server {first} --topic greetings",
        f"kafka-console-consumer.sh --bootstrap-server {first} --topic greetings --from-beginning",
        'tidelog compact greetings && tidelog sql "SELECT timestamp, key, value FROM topics.greetings"'
        if stack.history is None
        else 'tidelog history show; tidelog sql "SELECT timestamp, key, value FROM topics.greetings"',
    ):
        _tell(console, f"  {line}")
    console.print("Ctrl-C stops everything; the data stays.")


def _tell(console: Console, line: str) -> None:
    """Prints without wrapping, so that a copied command stays one line."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


@contextlib.contextmanager
def _signals_set(stopping: threading.Event, up: threading.Event) -> Iterator[None]:
    """The first signal ends the start, or the watch if the stack is up. Later signals are ignored: the stack
    already stops.
    """

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if stopping.is_set():
            return
        stopping.set()
        if not up.is_set():
            raise KeyboardInterrupt

    before = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
