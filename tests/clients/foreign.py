"""Clients of other languages, each in one of our programs: one command per process, JSON in and JSON lines
out.

`go/internal/program` says what a program does. All programs do the same. The command `member` is a member
of a consumer group (`tests/clients/members`); all others end by themselves.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.clients.matrix_plugin import ToolchainAbsent
from tests.clients.members.process import asked_again
from tests.clients.toolchains import BUILT, HERE, TOOLCHAINS, Toolchain, build

ASK_TIMEOUT_S = 60.0


class ProgramFailed(Exception):
    """A program ended with a status other than 0, or not in time. The message has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A client's program."""

    client: str
    toolchain: Toolchain
    command: tuple[str, ...]

    def make(self) -> None:
        """Call it before the others. It costs nothing if the program is built. Raises `ToolchainAbsent` or
        `BuildFailed`.
        """
        missing = self.toolchain.missing()
        if missing is not None:
            raise ToolchainAbsent(self.client, missing)
        build(self.toolchain)

    def ask(self, command: str, **arguments: Any) -> list[dict[str, Any]]:
        """The output lines of `command`. Raises `ProgramFailed`."""
        try:
            done = asked_again(
                lambda: subprocess.run(
                    [*self.command, command],
                    input=json.dumps(arguments) + "\n",
                    capture_output=True,
                    text=True,
                    timeout=ASK_TIMEOUT_S,
                    check=False,
                )
            )
        except subprocess.TimeoutExpired as late:
            raise ProgramFailed(
                f"{self.client} {command} {arguments} took over {ASK_TIMEOUT_S} s: {late}"
            ) from late
        if done.returncode != 0:
            raise ProgramFailed(
                f"{self.client} {command} {arguments} ended with {done.returncode}: {done.stderr}"
            )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def answer(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The one output line of `command`."""
        (line,) = self.ask(command, **arguments)
        return line


PROGRAMS: Mapping[str, Program] = {
    program.client: program
    for program in (
        Program(client="franz-go", toolchain=TOOLCHAINS["go"], command=(f"{BUILT}/go/franz-go",)),
        Program(client="sarama", toolchain=TOOLCHAINS["go"], command=(f"{BUILT}/go/sarama",)),
        Program(client="segmentio/kafka-go", toolchain=TOOLCHAINS["go"], command=(f"{BUILT}/go/kafka-go",)),
        Program(client="kafkajs", toolchain=TOOLCHAINS["node"], command=("node", f"{HERE}/node/main.js")),
        Program(
            client="rust-rdkafka",
            toolchain=TOOLCHAINS["rust"],
            command=(f"{BUILT}/rust/debug/rdkafka-client",),
        ),
    )
}
