"""The command `tidelog`: its list of commands. Promises that no command's module is imported before it is asked for."""

from typing import Annotated

import typer

from tidelog.lazy_commands import Entry, LazyGroup


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
            ("history", "Keep the topics' tables fresh; show what they have."),
            ("ttl", "Drop history that its topic's retention has expired."),
            ("sql", "Ask Spark SQL about compacted topics."),
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
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that come before the command."""
