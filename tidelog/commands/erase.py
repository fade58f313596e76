"""`tidelog erase TOPIC --key K`: takes the records of some keys out of everything that holds them."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from erasure.erase import erase_records
from erasure.report import ErasureFailed, ErasureProgress, ErasureReport
from erasure.settings import ErasureSettings
from sequencer.cluster.ownership import OwnershipUnconfirmed
from sequencer.cluster.store_identity import WrongStore
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.topics.topics import UnknownTopic
from storage.arrow.erased_batches import ErasedKeys
from storage.encryption.key_wrapping import KeyUnavailable
from storage.stores.object_store import StoreUnavailable
from tidelog.audit import audited
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.output import as_text, counted, print_json
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_AGAIN = "The same command, run again, goes on with what is left."

_KEYS = (
    "Give the command the agents' TIDELOG_ENCRYPTION_* settings, and run it again: it goes on with what is "
    "left. What no key opens, retention or deleting these records removes (docs/operate.md)."
)


@app.command(no_args_is_help=True)
@with_settings(ClientSettings, ErasureSettings)
def erase(
    *,
    environment: Environment,
    topic: Annotated[str, typer.Argument(help="Whose records.", show_default=False)],
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="A key to erase. Repeat it for more.", show_default=False),
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            "--keys-file",
            help="A file with one key per line.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    hexadecimal: Annotated[bool, typer.Option("--hex", help="The keys are written in hexadecimal.")] = False,
    null_key: Annotated[bool, typer.Option("--null-key", help="Also erase records without a key.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Erase the records of some keys for good. Other records keep their offsets. It ends when no object,
    cached page or live snapshot holds them: after some 12 minutes with the default waits. What is produced
    after it began stays.
    """
    keys = _keys(key or [], keys_file, hexadecimal=hexadecimal, null_key=null_key)
    console = Console(stderr=as_json)
    found = find_cluster(environment)
    client = found.read(ClientSettings)
    for name in ("database_url", "store_url"):
        require(client, name)
    try:
        with audited(environment, "tidelog erase", "TOPIC", topic, keys=len(keys.keys)):
            report = _with_progress(found.read(ErasureSettings), topic, keys, console)
    except UnknownTopic as unknown:
        raise UserError(str(unknown), "`tidelog topics list` shows those there are.") from None
    except KeyUnavailable as missing:
        raise UserError(f"Topic '{topic}' is encrypted: {str(missing).rstrip('.')}.", _KEYS) from None
    except (WrongStore, ValueError) as failed:
        raise UserError(str(failed)) from None
    except (
        ErasureFailed,
        OwnershipUnconfirmed,
        CommitOutcomeUnknown,
        SequencerUnavailable,
        StoreUnavailable,
    ) as failed:
        raise UserError(f"{str(failed).rstrip('.')}.", _AGAIN) from None
    finally:
        _stop_spark()
    if as_json:
        print_json(asdict(report))
    else:
        console.print(_table(report))


def _stop_spark() -> None:
    """Ends Spark's JVM. An erasure of a topic without history never starts it."""
    if "pyspark" in sys.modules:
        from spark_compaction.session import stop_spark

        stop_spark()


def _keys(given: list[str], file: Path | None, *, hexadecimal: bool, null_key: bool) -> ErasedKeys:
    lines = [key.encode() for key in given]
    if file is not None:
        lines += [line.removesuffix(b"\r") for line in file.read_bytes().split(b"\n") if line.strip()]
    try:
        keys: list[bytes | None] = [bytes.fromhex(line.decode()) if hexadecimal else line for line in lines]
    except ValueError as error:
        raise UserError(f"A key is not hexadecimal: {error}.", "Without --hex keys are text.") from None
    if null_key:
        keys.append(None)
    if not keys:
        raise UserError("Nothing to erase.", "Name keys by --key or --keys-file.")
    try:
        return ErasedKeys(keys)
    except ValueError as error:
        raise UserError(f"{str(error).capitalize()}.", "Split the file.") from None


def _with_progress(
    settings: ErasureSettings, topic: str, keys: ErasedKeys, console: Console
) -> ErasureReport:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[share]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("Starting", total=None, share="")

        def show(now: ErasureProgress) -> None:
            text = f"{topic}: {now.stage}"
            share = f"{now.done:,}" if now.total is None else f"{now.done:,} of {now.total:,}"
            progress.update(bar, description=text, completed=now.done, total=now.total, share=share)

        return erase_records(settings, topic, keys, show)


def _table(report: ErasureReport) -> Table:
    title = f"{report.topic}: {counted(report.keys, 'key')} erased in {as_text(report.took_s)}"
    table = Table("", "log", "history", title=title, header_style="bold cyan")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("records erased", f"{report.raw_records:,}", f"{report.history_records:,}")
    table.add_row("objects rewritten", f"{report.objects_rewritten:,}", f"{report.files_rewritten:,}")
    table.add_row("objects written", f"{report.objects_written:,}", "")
    table.add_row("bytes written", f"{report.bytes_written:,}", "")
    table.add_row("read", f"{report.raw_bytes_read:,} bytes", counted(report.files_read, "file"))
    return table
