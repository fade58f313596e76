"""`tidelog recover`: brings the log back after a database was restored, copied or lost."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from recovery.plan import JournalPosition, Source
from recovery.recover import CannotRecover, Task, recover, rehearse
from recovery.report import PartitionChange, Report
from recovery.settings import RecoverySettings
from sequencer.cluster.ownership import Ownership, OwnershipUnconfirmed, read_owner
from sequencer.cluster.store_identity import WrongStore
from sequencer.database.database import CommitOutcomeUnknown, Database, SequencerUnavailable
from sequencer.journal.loading import JournalMismatch
from sequencer.journal.recovery import RecoveryAtWork
from sequencer.migrate import MigrationRefused
from sequencer.settings import MigrationSettings, SequencerSettings
from storage.segments.journal_format import CorruptJournal
from storage.stores.object_store import ObjectNotFound, StoreSettings, StoreUnavailable
from storage.stores.open_store import open_store
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require, require_owner_url
from tidelog.output import counted
from tidelog.owner_text import owner_text
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_LOSSES = 2
"""The exit status if records were lost."""
_ENDS_UNKNOWN = 3
"""The exit status if none were lost, but transactions were aborted that may have been committed."""


@app.command("recover")
@with_settings(ClientSettings, RecoverySettings, StoreSettings)
def recover_command(
    *,
    environment: Environment,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would happen, and write nothing.")
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the bucket from the database that owns it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Compare the database with the bucket, and make one log of both. Exit status 2 if records are lost; 3 if
    none are, but transactions were aborted whose end is not known.
    """
    task = _task(find_cluster(environment), take_over=take_over)
    console = Console()

    def run(*, is_rehearsal: bool) -> Report:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            bar = bars.add_task("Reading", total=None)

            def tell(what: str, done: int, of: int | None) -> None:
                bars.update(bar, description=what, completed=done, total=of)

            return asyncio.run(_run(replace(task, progress=tell), is_rehearsal=is_rehearsal))

    try:
        owner = asyncio.run(_owner(task))
        console.print(owner, highlight=False, soft_wrap=True)
        if dry_run or not yes:
            _show(run(is_rehearsal=True), task.settings, console)
        if dry_run or (not yes and not sys.stdin.isatty()):
            console.print("Nothing was changed." + ("" if dry_run else " Run it with --yes to do it."))
            return
        if not yes:
            typer.confirm("Do it?", abort=True)
        report = run(is_rehearsal=False)
    except (SequencerUnavailable, StoreUnavailable, CommitOutcomeUnknown) as failed:
        raise UserError(f"{failed}.", "Run `tidelog recover` again: it continues.") from None
    except (
        CannotRecover,
        RecoveryAtWork,
        WrongStore,
        OwnershipUnconfirmed,
        MigrationRefused,
        CorruptJournal,
        JournalMismatch,
        ObjectNotFound,
    ) as failed:
        raise UserError(f"{failed}.") from None
    except ValueError as wrong:
        raise UserError(str(wrong)) from None
    _show(report, task.settings, console)
    console.print("Start the agents. `tidelog doctor --verify` checks the result.")
    if not report.is_lossless:
        raise typer.Exit(_LOSSES)
    if report.aborted:
        raise typer.Exit(_ENDS_UNKNOWN)


def _task(found: Environment, *, take_over: bool) -> Task:
    client = found.read(ClientSettings)
    return Task(
        database_url=require_owner_url(client),
        store_url=require(client, "store_url"),
        cluster=client.cluster,
        take_over=take_over,
        settings=found.read(RecoverySettings),
        store_settings=found.read(StoreSettings),
        sequencer_settings=found.read(SequencerSettings),
        migration_settings=found.read(MigrationSettings),
    )


async def _owner(task: Task) -> str:
    """What bucket and database say about the bucket's owner. A database without tables says nothing."""
    database = Database(task.database_url, task.sequencer_settings)
    await database.open()
    store = await open_store(task.store_url, task.store_settings)
    try:
        seen = await read_owner(store, task.cluster)
        try:
            return owner_text(seen, await Ownership(database).state(), datetime.now(UTC))
        except SequencerUnavailable:
            return "" if seen is None else f"The bucket names cluster {seen.cluster_id}, epoch {seen.epoch}."
    finally:
        await store.close()
        await database.close()


async def _run(task: Task, *, is_rehearsal: bool) -> Report:
    work: Callable[..., object] = rehearse if is_rehearsal else recover
    store = await open_store(task.store_url, task.store_settings)
    try:
        return await work(task, store)  # type: ignore[misc,no-any-return]
    finally:
        await store.close()


def _show(report: Report, settings: RecoverySettings, console: Console) -> None:
    _show_sides(report, console)
    _show_partitions(report, settings.recovery_listed, console)
    _show_losses(report, console)
    _show_aborted(report, console)
    would = "would be " if report.is_rehearsal else ""
    aborted = len(report.aborted) + report.aborted_more
    appended = f"{counted(report.appended, 'record')} {would}appended"
    if not report.is_lossless:
        verdict = (
            f"[bold red]{counted(report.gone, 'offset')} gone, "
            f"{counted(report.records_refused, 'record')} refused[/]"
        )
    elif report.aborted:
        verdict = (
            f"[bold yellow]{appended}; nothing is lost, but {counted(aborted, 'end')} of transactions "
            f"{'is' if aborted == 1 else 'are'} not known[/]"
        )
    else:
        verdict = f"[bold green]{appended}; nothing is lost[/]"
    console.print(verdict + ("  [dim](dry run: nothing was written)[/]" if report.is_rehearsal else ""))


def _show_sides(report: Report, console: Console) -> None:
    shown = Table("looked at", "", header_style="bold cyan")
    shown.add_row("the database's journal reaches to", _position(report.database_position))
    shown.add_row("the bucket's journal reaches to", _position(report.bucket_position))
    shown.add_row("the log comes from", f"[bold]{report.source.value}[/]")
    if report.source is Source.JOURNAL:
        shown.add_row("rows read from the journal", f"{report.journal_rows:,}")
    shown.add_row("known up to", _age(report.last_entry_at))
    shown.add_row(
        "objects in the bucket", f"{report.uploaded_objects:,} uploaded, {report.merged_objects:,} merged"
    )
    shown.add_row(
        "objects missing", f"{report.missing_objects:,}, {report.undeleted_objects:,} of them undeleted"
    )
    shown.add_row("young segments", f"{report.young_segments:,}")
    shown.add_row("objects that no row names", f"{report.leftovers:,} (garbage from now on)")
    if report.keys_found:
        shown.add_row("keys of topics found in the bucket", f"{report.keys_found:,}")
    for fault in report.key_faults:
        shown.add_row("[red]a topic's key is damaged[/]", fault.replace("[", "\\["))
    for fault in report.journal_faults:
        shown.add_row("[red]the journal is damaged[/]", fault.replace("[", "\\["))
    for step, seconds in report.seconds.items():
        shown.add_row(f"[dim]time for {step}[/]", f"[dim]{seconds:.1f} s[/]")
    console.print(shown)


def _position(position: JournalPosition | None) -> str:
    return "nothing" if position is None else f"epoch {position.epoch}, entry {position.number}"


def _age(moment: datetime | None) -> str:
    if moment is None:
        return "nothing"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC, {(datetime.now(UTC) - moment).total_seconds():,.1f} s ago"


def _show_partitions(report: Report, listed: int, console: Console) -> None:
    changed = [change for change in report.partitions.values() if change.is_changed]
    if not changed:
        return
    names = (
        "partition",
        "end before",
        "end after",
        "appended",
        "in the log already",
        "from merged",
        "gone",
        "refused",
    )
    shown = Table(*names, header_style="bold cyan")
    for column in shown.columns[1:]:
        column.justify = "right"
    for change in changed[:listed]:
        shown.add_row(*_cells(change))
    console.print(shown)
    if len(changed) > len(shown.rows):
        console.print(f"and {counted(len(changed) - len(shown.rows), 'partition')} more")


def _cells(change: PartitionChange) -> tuple[str, ...]:
    ends = [
        "" if end is None else f"{end:,}"
        for end in (change.high_watermark_before, change.high_watermark_after)
    ]
    counts = (change.appended, change.duplicates, change.replaced)
    lost = [f"[bold red]{count:,}[/]" if count else "0" for count in (change.gone, change.refused)]
    return f"[bold]{change.name}[/]", *ends, *(f"{count:,}" for count in counts), *lost


def _show_aborted(report: Report, console: Console) -> None:
    if not report.aborted:
        return
    title = "aborted: it may have been committed, or still open"
    shown = Table(title, "producer id", header_style="bold yellow")
    for one in report.aborted:
        shown.add_row(f"{one.name} [{one.first_offset}, {one.marker_offset}]", str(one.producer_id))
    console.print(shown)
    if report.aborted_more:
        console.print(f"and {report.aborted_more:,} more")


def _show_losses(report: Report, console: Console) -> None:
    if report.is_lossless:
        return
    shown = Table("lost", "records", "why", header_style="bold red")
    shown.columns[1].justify = "right"
    for gone in report.gone_ranges:
        shown.add_row(
            f"{gone.name} [{gone.base_offset}, {gone.last_offset}]", f"{gone.offsets:,}", gone.reason
        )
    for refused in report.refused:
        records = "?" if refused.records is None else f"{refused.records:,}"
        shown.add_row(refused.what, records, refused.reason)
    console.print(shown)
    more = report.gone_more + report.refused_more
    if more:
        console.print(f"and {more:,} more")
