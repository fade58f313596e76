"""The shell of `tidelog sql`: statements on a terminal, with history and completion.

Promises:
- Ctrl-C ends the statement that runs, or the line that is typed, and never the shell. Ctrl-D leaves.
- What is entered together is one call: its statements see one snapshot. The next call sees the newest.
- The file of past statements is its owner's alone, and has at most `_KEPT` of them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent

from tidelog.commands.sql import note, run_all
from tidelog.errors import UserError
from tidelog.sql.catalog import Table
from tidelog.sql.choose_engine import Ask, EngineChoice, SqlSession
from tidelog.sql.engine import NotInDuckDB, StatementCancelled
from tidelog.sql.output import Format, Output
from tidelog.sql.settings import SqlSettings
from tidelog.sql.statements import Token, is_complete, quoted, significant, split, tokens_of, unquoted

Choice = TypeVar("Choice", bound=StrEnum)

_KEPT: Final = 5_000
_COMMANDS: Final = {
    "\\help": "these commands",
    "\\tables": "the tables that there are",
    "\\describe TABLE": "the columns of a table",
    "\\format FORMAT": "table, csv, json or parquet",
    "\\output FILE": "answers go to this file; without a name, to the terminal",
    "\\engine ENGINE": "auto, duckdb or spark",
    "\\fresh on|off": "with the newest records, which are not in history yet",
    "\\read FILE": "run the statements of a file",
    "\\quit": "leave, as Ctrl-D does",
}
_KEYWORDS: Final = (
    "SELECT FROM WHERE GROUP ORDER BY HAVING LIMIT OFFSET DISTINCT WITH AS JOIN LEFT ON USING UNION ALL AND "
    "OR NOT IN BETWEEN LIKE IS NULL CASE WHEN THEN ELSE END CAST STRING BIGINT TIMESTAMP INTERVAL DESC ASC "
    "DESCRIBE EXPLAIN SUMMARIZE VALUES count sum min max avg now date_trunc"
)


def history_path(variables: Mapping[str, str]) -> Path:
    """Where past statements are kept, by the variables of the process."""
    state = variables.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tidelog" / "sql_history"


class Shell:
    def __init__(
        self,
        session: SqlSession,
        settings: SqlSettings,
        *,
        form: Format,
        path: Path | None,
        engine: EngineChoice,
        fresh: bool,
        past: Path,
    ) -> None:
        """`past` keeps the statements."""
        self._session = session
        self._past = past
        self._settings = settings
        self._form = form
        self._path = path
        self._engine = engine
        self._fresh = fresh
        self._commands: dict[str, Callable[[str], None]] = {
            "\\help": self._help,
            "\\tables": self._tables,
            "\\describe": self._describe,
            "\\format": self._set_format,
            "\\output": self._set_output,
            "\\engine": self._set_engine,
            "\\fresh": self._set_fresh,
            "\\read": self._read,
        }

    def run(self) -> None:
        """Until the person leaves."""
        prompt = self._prompt()
        note("Statements end with ;   \\help shows the commands, Ctrl-D leaves.")
        is_open = True
        while is_open:
            with suppress(KeyboardInterrupt):  # also between a statement's end and the next prompt
                is_open = self._turn(prompt)

    def _turn(self, prompt: "PromptSession[str]") -> bool:
        """Does what is entered. False: the person leaves."""
        try:
            text = prompt.prompt("sql> ").strip()
        except EOFError:
            return False
        if text in ("\\quit", "\\q", "quit", "exit", "quit;", "exit;"):
            return False
        self._do(text)
        return True

    def _do(self, text: str) -> None:
        try:
            if text.startswith("\\"):
                self._command(text)
            elif text:
                self._ask(text)
        except StatementCancelled:
            note("Cancelled.")
        except KeyboardInterrupt:
            note("Cancelled.")
        except UserError as failed:
            note("\n".join(part for part in (failed.message, failed.fix) if part))
        except ModuleNotFoundError as missing:
            note(f"The package {missing.name} is not installed. Run `pip install 'tidelog[history]'`.")

    def _ask(self, text: str) -> None:
        statements = split(text, backslash_escapes=self._engine is EngineChoice.SPARK)
        output = Output(self._form, self._path, self._settings.sql_max_rows)
        ask = Ask(engine=self._engine, fresh=self._fresh, most_rows=output.most_rows)
        with output.opened():
            run_all(self._session, statements, ask, output)

    def _command(self, text: str) -> None:
        name, _, rest = text.rstrip("; ").partition(" ")
        known = [each for each in self._commands if each.startswith(name.lower())]
        if len(known) != 1:
            raise UserError(f"There is no command {name}.", "\\help shows those there are.")
        self._commands[known[0]](rest.strip())

    def _help(self, _: str) -> None:
        width = max(map(len, _COMMANDS))
        note("\n".join(f"{name:{width}}  {meaning}" for name, meaning in _COMMANDS.items()))

    def _tables(self, _: str) -> None:
        names = self._session.catalog.names()
        note("\n".join(f"topics.{_spelled(name)}" for name in names) or "No topic has history yet.")

    def _describe(self, name: str) -> None:
        if not name:
            raise UserError("Which table?", "For example: \\describe flights")
        self._session.begin()
        table = self._session.catalog.table(unquoted(name.rpartition("topics.")[2]), or_topic=self._fresh)
        width = max(len(column.name) for column in table.columns)
        note("\n".join(f"{column.name:{width}}  {column.type}" for column in table.columns))

    def _set_format(self, name: str) -> None:
        form = _one_of(Format, name)
        Output(form, self._path, self._settings.sql_max_rows)  # whether they fit
        self._form = form

    def _set_output(self, name: str) -> None:
        path = Path(name).expanduser() if name else None
        Output(self._form, path, self._settings.sql_max_rows)
        self._path = path

    def _set_engine(self, name: str) -> None:
        self._engine = _one_of(EngineChoice, name)

    def _set_fresh(self, word: str) -> None:
        if word not in ("on", "off"):
            raise UserError(f"\\fresh is {'on' if self._fresh else 'off'}.", "Say \\fresh on or \\fresh off.")
        self._fresh = word == "on"

    def _read(self, name: str) -> None:
        try:
            text = Path(name).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{name or 'A file without a name'} cannot be read: {error}.") from None
        self._ask(text)

    def _prompt(self) -> "PromptSession[str]":
        return PromptSession(
            history=_history(self._past),
            completer=_Names(self._session),
            complete_while_typing=False,
            auto_suggest=AutoSuggestFromHistory(),
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation="...> ",
        )


def _history(path: Path) -> FileHistory:
    """The newest statements. Without a place for the file there is no history."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.chmod(0o600)
        entries = path.read_text(encoding="utf-8", errors="replace").split("\n\n# ")
        if len(entries) > 2 * _KEPT:
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            partial.touch(mode=0o600)
            partial.write_text("\n\n# " + "\n\n# ".join(entries[-_KEPT:]), encoding="utf-8")
            partial.replace(path)
    except OSError:
        return FileHistory(os.devnull)
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    """Enter sends what is complete: commands, statements that have ended, and nothing at all."""
    keys = KeyBindings()

    @keys.add("enter")
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif is_sent(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys


def is_sent(text: str) -> bool:
    """True if Enter sends this."""
    own = text.strip()
    return own.startswith("\\") or own in ("", "quit", "exit") or is_complete(text)


class _Names(Completer):
    """Tables after FROM and JOIN, columns of the tables that are named, words of SQL, and commands."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._tables: list[str] | None = None
        self._columns: dict[str, list[str]] = {}

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        if before.lstrip().startswith("\\") and " " not in before.strip():
            commands = (name.partition(" ")[0] for name in _COMMANDS)
            yield from _starting(before.strip(), commands)
            return
        try:
            yield from self._names(document.text, before)
        except UserError:
            return  # an agent that is away must not disturb who types

    def _names(self, text: str, before: str) -> Iterator[Completion]:
        tokens = significant(tokens_of(before))
        is_typing = (
            bool(tokens) and tokens[-1].end == len(before) and tokens[-1].kind in ("word", "quoted", "open")
        )
        typed = tokens[-1].text if is_typing else ""
        previous = tokens[:-1] if is_typing else tokens
        if _wants_table(previous) or before.lstrip().startswith("\\describe"):
            yield from _starting(typed, (*map(_spelled, self._all_tables()), "topics."))
        else:
            yield from _starting(typed, self._columns_of(text))
            yield from _starting(typed, _KEYWORDS.split())

    def _all_tables(self) -> list[str]:
        if self._tables is None:
            self._tables = self._session.catalog.names()
        return self._tables

    def _columns_of(self, text: str) -> list[str]:
        named = {unquoted(token.text).lower() for token in tokens_of(text)}
        found: dict[str, None] = {}
        for name in self._all_tables():
            if name.lower() in named:
                if name not in self._columns:
                    try:
                        table: Table = self._session.catalog.table(name)
                    except NotInDuckDB:
                        continue
                    self._columns[name] = [_spelled(column.name) for column in table.columns]
                found |= dict.fromkeys(self._columns[name])
        return list(found)


def _wants_table(tokens: list[Token]) -> bool:
    at = len(tokens)
    while at >= 2 and tokens[at - 1].says(".") and tokens[at - 2].says("topics", "tidelog"):
        at -= 2
    return at > 0 and tokens[at - 1].says("from", "join", "describe", "summarize")


def _starting(typed: str, words: Iterable[str]) -> Iterator[Completion]:
    folded = typed.lower().lstrip('"')
    for word in words:
        if word.lower().lstrip('"').startswith(folded):
            yield Completion(word, start_position=-len(typed))


def _spelled(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else quoted(name)


def _one_of(kind: type[Choice], name: str) -> Choice:
    try:
        return kind(name.lower())
    except ValueError:
        raise UserError(f"'{name}' is none of {', '.join(kind)}.") from None
