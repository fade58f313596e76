"""The shell: what a person types, on a terminal of its own."""

import os
import pty
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from tests.spark_source.conftest import Topic
from tests.tidelog.sql.conftest import COMPACTED, IN_THE_TAIL
from tidelog.process.environment import Environment
from tidelog.sql.choose_engine import SqlSession
from tidelog.sql.shell import _history, _Names, is_sent

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

WAIT_S = 60.0


class Terminal:
    """`tidelog sql` on a pseudo terminal."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "tidelog", "sql"], environment)
        self._said = b""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, words: str) -> str:
        """What the shell has said since the last call, up to the words."""
        deadline = time.monotonic() + WAIT_S
        while words.encode() not in self._said:
            if time.monotonic() > deadline:
                raise AssertionError(f"no {words!r} in {self._said.decode(errors='replace')}")
            self._read()
        said, _, self._said = self._said.partition(words.encode())
        return said.decode(errors="replace") + words

    def exit_code(self) -> int:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid = 0
                return os.waitstatus_to_exitcode(status)
            self._read()
        raise AssertionError("the shell has not ended")

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, 9)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    def _read(self) -> None:
        if select.select([self._fd], [], [], 0.2)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the shell has ended
                return
            if b"\x1b[6n" in data:
                os.write(self._fd, b"\x1b[1;1R")  # where the cursor is, as a terminal answers
            self._said += data


@pytest.fixture
def terminal(environment: Environment, tmp_path: Path) -> Iterator[Callable[[], Terminal]]:
    made: list[Terminal] = []
    own = {**os.environ, **environment.variables, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}

    def start() -> Terminal:
        made.append(Terminal(own))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_statements_commands_and_errors_in_one_sitting(
    terminal: Callable[[], Terminal], topic: Topic, tmp_path: Path
) -> None:
    shell = terminal()
    shell.wait_for("sql>")

    shell.type(f'SELECT count(*) AS c\rFROM "{topic.name}";\r')  # Enter sends no statement without its end
    assert str(2 * COMPACTED) in shell.wait_for("by duckdb")
    shell.type("SELEC 1;\r")
    shell.wait_for("syntax error")
    shell.type("\\tables\r")
    shell.wait_for(f'topics."{topic.name}"')
    shell.type("\\fresh on\r")
    shell.type(f'SELECT count(*) AS c FROM "{topic.name}"; SELECT 41 + 1 AS two;\r')
    assert str(2 * COMPACTED + IN_THE_TAIL) in shell.wait_for("newest records")
    assert "42" in shell.wait_for("reads no table")
    shell.type("\\format csv\r\\output " + str(tmp_path / "answer.csv") + "\rSELECT 7 AS seven;\r")
    shell.wait_for("1 row by duckdb")
    shell.type("\\nonsense\r")
    shell.wait_for("no command")
    shell.wait_for("sql>")
    shell.type("\x04")

    assert shell.exit_code() == 0
    assert (tmp_path / "answer.csv").read_text() == "seven\n7\n"
    kept = tmp_path / "tidelog" / "sql_history"
    assert "SELECT 7 AS seven;" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_ctrl_c_ends_the_statement_and_not_the_shell(terminal: Callable[[], Terminal]) -> None:
    shell = terminal()
    shell.wait_for("sql>")

    shell.type("SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = 7;\r")
    time.sleep(3)
    shell.type("\x03")
    shell.wait_for("Cancelled.")
    shell.type("SELECT 'still ' || 'here' AS x;\r")
    shell.wait_for("still here")
    shell.type("\x03" * 20)  # some of them while no prompt is shown
    shell.wait_for("sql>")
    shell.type("half a line\x03")
    shell.type("\\quit\r")

    assert shell.exit_code() == 0


def completions(session: SqlSession, text: str) -> list[str]:
    found = _Names(session).get_completions(Document(text), CompleteEvent())
    return [completion.text for completion in found]


def test_tables_columns_words_and_commands_are_completed(session: SqlSession, topic: Topic) -> None:
    assert f'"{topic.name}"' in completions(session, "SELECT * FROM ")
    assert completions(session, f'SELECT * FROM topics."{topic.name[:-1]}') == [f'"{topic.name}"']
    assert completions(session, f'SELECT * FROM "{topic.name}" WHERE parti') == ["partition"]
    assert completions(session, "SELECT 1 GROU") == ["GROUP"]
    assert completions(session, "\\de") == ["\\describe"]


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT ';", False),
        ("\\help", True),
        ("", True),
        ("exit", True),
    ],
)
def test_enter_sends_what_is_complete(text: str, sent: bool) -> None:
    assert is_sent(text) is sent


def test_the_file_of_past_statements_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "state" / "sql_history"
    path.parent.mkdir()
    path.write_text("".join(f"\n# 2026-01-01\n+SELECT {number};\n" for number in range(20_000)))

    newest = next(iter(_history(path).load_history_strings()))

    assert newest == "SELECT 19999;"
    assert path.read_text().count("SELECT") == 5_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
