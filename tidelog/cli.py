"""The command `tidelog`: its list of commands, and how their errors are told.

Promises that an error a person can act on (`UserError`) is a short text on stderr and exit status 1, that Ctrl-C is
status 130, and that no command's module is imported before it is asked for.
"""

import gc
import logging
import sys
import warnings
from typing import Annotated

import typer

from tidelog.errors import UserError
from tidelog.lazy_commands import Entry, LazyGroup

_COLLECT_AFTER = (50_000, 20, 50)
"""Objects made and not freed before Python looks for cycles among the youngest, and collections of one age before the
next. Imports leave none, nor do an agent's requests: with Python's own thresholds, looking took 7 % of an agent's CPU.
"""


class Commands(LazyGroup):
    """Everything `tidelog` can be told to do."""

    entries = tuple(
        Entry(name=name, module=f"tidelog.commands.{name}", help=text)
        for name, text in (
            ("demo", "The whole path on real data, checked record by record, in under three minutes."),
            ("dev", "An interactive stack (Postgres, S3, agents) until Ctrl-C."),
            ("topics", "List, create, describe, alter and delete topics, and set their configs."),
            ("groups", "List and describe consumer groups, set their offsets, delete them."),
            ("clients", "Who is connected, with which library and version."),
            ("produce", "Produce lines from standard input."),
            ("consume", "Print the records of a topic."),
            ("compact", "Compact topics into Parquet with Spark."),
            ("ttl", "Drop history that its topic's retention has expired."),
            ("sql", "Ask Spark SQL about compacted topics."),
            ("doctor", "Check the log and the bucket against each other, both ways."),
            ("agent", "Run one agent."),
            ("migrate", "Bring the database's schema up to date."),
        )
    )


app = typer.Typer(
    name="tidelog",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"tidelog {version('tidelog')}")
        raise typer.Exit


@app.callback(
    help="A diskless, Kafka-compatible log: records in object storage, order in Postgres, history in Parquet."
)
def tidelog(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that come before the command."""


def main() -> None:
    """The console script."""
    gc.set_threshold(*_COLLECT_AFTER)
    # The embedded Postgres's package says this on import; it concerns a directory that Tidelog does not use.
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
    # kio makes itself known to hypothesis where that is installed, and imports 0.2 s of it: for its own tests alone.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    # A library's warnings come before the error that says the same; an agent's logs are set up in logs.py.
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.ERROR)
    try:
        app()
    except UserError as error:
        from rich.console import Console
        from rich.text import Text

        text = Text.assemble(("tidelog: ", "bold red"), error.message)
        if error.fix:
            text.append(f"\n  {error.fix}", style="yellow")
        Console(stderr=True, soft_wrap=True).print(text)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
