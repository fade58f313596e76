"""The list of the commands of `tidelog`. Promises that a command's module is imported only when it runs.

Commands that are imported when they are run, so that `tidelog --help` answers at once.

The list of commands needs a name and a line of help for each; the module behind a command (Spark, pandas, a
Kafka client) is imported only by the invocation that needs it.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`module` has a `typer.Typer` called `app`: one command, or a group of them."""

    name: str
    module: str
    help: str


class LazyCommand(typer.core.TyperCommand):
    """Stands for a command in the list; the real one makes the context that runs it."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(name=entry.name, help=entry.help, rich_markup_mode=None)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        command = typer.main.get_command(import_module(self._entry.module).app)
        command.name = self._entry.name
        is_completing = extra.get("resilient_parsing", False)
        if not args and command.no_args_is_help and not is_completing:
            args = [
                "--help"
            ]  # what the framework would raise instead is not printed for a command within this list
        return command.make_context(info_name, args, parent=parent, **extra)


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are the class's `entries`, in that order."""

    entries: tuple[Entry, ...] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for entry in self.entries:
            self.add_command(LazyCommand(entry))


class Commands(LazyGroup):
    """All commands of `tidelog`."""

    entries = tuple(
        Entry(name=name, module=f"tidelog.commands.{name}", help=text)
        for name, text in (
            ("demo", "The whole path on real data, checked record by record, in under three minutes."),
            ("dev", "An interactive stack (Postgres, S3, agents) until Ctrl-C."),
            ("topics", "List, create, describe, alter and delete topics, and set their configs."),
            ("groups", "List and describe consumer groups, set their offsets, delete them."),
            ("users", "Add, list and remove users, and change their passwords."),
            ("keys", "The keys of encrypted topics: list, rotate, encrypt them with another key."),
            ("tenants", "Make, list and delete tenants, limit them, and show their bill."),
            ("clients", "Who is connected, with which library and version."),
            ("produce", "Produce lines from standard input."),
            ("consume", "Print the records of a topic."),
            ("compact", "Compact topics into Parquet with Spark."),
            ("history", "Keep the topics' tables fresh; show what they have."),
            ("ttl", "Drop history that its topic's retention has expired."),
            ("erase", "Erase the records of some keys for good."),
            ("sql", "Ask SQL about topics: a statement, a file, or a shell."),
            ("doctor", "Check the log and the bucket against each other, both ways."),
            ("recover", "Bring the log back after a restore, or from the bucket alone."),
            ("backup", "Base backups and archived WAL of the sequencer's Postgres, in the bucket."),
            ("agent", "Run one agent."),
            ("peers", "Renew the secret by which agents know each other."),
            ("migrate", "Bring the database's schema up to date."),
        )
    )


app = typer.Typer(
    name="tidelog",
    cls=Commands,
    no_args_is_help=True,
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
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Options that come before the command."""
