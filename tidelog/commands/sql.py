"""`tidelog sql`: SQL over topics, as one command, from a file, or as a shell."""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from spark_source.settings import SourceSettings
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster
from tidelog.output import as_text, counted
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings
from tidelog.sql.choose_engine import Ask, EngineChoice, SqlSession, require_http
from tidelog.sql.engine import Answer, StatementCancelled
from tidelog.sql.output import Format, Output, Written
from tidelog.sql.settings import SqlSettings
from tidelog.sql.statements import Statement, split

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_settings(ClientSettings, SqlSettings)
def sql(
    environment: Environment,
    text: Annotated[
        str | None,
        typer.Argument(
            help='For example "SELECT count(*) FROM topics.flights"; by default a shell.', show_default=False
        ),
    ] = None,
    *,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", help="A file of statements; - is standard input.", show_default=False),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="table, csv, json or parquet.")] = Format.TABLE,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A file for the answer, instead of the terminal.", show_default=False
        ),
    ] = None,
    engine: Annotated[
        EngineChoice, typer.Option("--engine", help="duckdb, spark, or auto: DuckDB for small questions.")
    ] = EngineChoice.AUTO,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="With the newest records, which are not in history yet.")
    ] = False,
) -> None:
    """Run statements, separated by semicolons, or a shell; the namespace of topics is `topics`."""
    if text is not None and file is not None:
        raise UserError("There are statements and a file of statements.", "Leave out one of them.")
    found = find_cluster(environment)
    settings = found.read(SqlSettings)
    require_http(settings)
    _show_warnings()

    with SqlSession(settings, lambda: found.read(SourceSettings), note) as session:
        if text is None and file is None and sys.stdin.isatty():
            from tidelog.sql.shell import Shell, history_path  # a prompt takes a fifth of a second to import

            past = history_path(found.variables)
            Shell(session, settings, form=form, path=output, engine=engine, fresh=fresh, past=past).run()
            return
        statements = split(
            text if text is not None else _read(file or "-"),
            backslash_escapes=engine is EngineChoice.SPARK,
        )
        if not statements:
            raise UserError(
                "There is no statement.", 'For example: tidelog sql "SELECT * FROM topics.flights".'
            )
        answers = Output(form, output, settings.sql_max_rows)
        ask = Ask(engine=engine, fresh=fresh, most_rows=answers.most_rows)
        try:
            with answers.opened():
                run_all(session, statements, ask, answers)
        except StatementCancelled:
            raise KeyboardInterrupt from None


def run_all(session: SqlSession, statements: Sequence[Statement], ask: Ask, output: Output) -> None:
    """One call: its statements see one snapshot of each table. Raises for the first that fails."""
    session.begin()
    for statement in statements:
        began_s = time.monotonic()
        run = session.ask(statement, ask)
        try:
            answer = run.answer()
            written = output.write(answer)
        except KeyboardInterrupt:
            raise StatementCancelled from None
        finally:
            run.stop()
        note(_summary(answer, written, time.monotonic() - began_s))


def _summary(answer: Answer, written: Written, took_s: float) -> str:
    cut = " (there are more; see TIDELOG_SQL_MAX_ROWS, or --format csv)" if written.is_cut else ""
    took = f"{took_s:.2f} s" if took_s < 10 else as_text(took_s)
    return f"{counted(written.rows, 'row')}{cut} by {answer.engine} in {took}: {answer.reason}"


def note(words: str) -> None:
    """To a person, not into the answer."""
    sys.stdout.flush()
    dim, plain = ("\x1b[2m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    sys.stderr.write(f"{dim}{words}{plain}\n")


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def _show_warnings() -> None:
    """What is missing of a tail, as its reader logs it."""
    reader = logging.getLogger("spark_source")
    if not reader.handlers:
        reader.addHandler(_Notes(logging.WARNING))
