"""`tidelog doctor`: does every row have its object, and every object its row?"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from compactor.diagnosis import Diagnosis
from compactor.doctor import DoctorSettings, examine
from compactor.metrics import write_amplification
from sequencer.client import Sequencer, SequencerSettings
from sequencer.cluster.agents import LiveAgent
from sequencer.cluster.ownership import read_owner
from sequencer.cluster.store_identity import WrongStore
from sequencer.database.database import SequencerUnavailable
from sequencer.housekeeping.merge_values import TierTotals
from sequencer.journal.recovery import GoneRange
from storage.stores.object_store import StoreSettings, StoreUnavailable
from storage.stores.open_store import open_store
from tidelog.agents_client import complaints
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.output import counted
from tidelog.owner_text import owner_text
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_settings(ClientSettings, DoctorSettings, StoreSettings, SequencerSettings)
def doctor(
    *,
    environment: Environment,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read every object, and check every byte.")
    ] = False,
) -> None:
    """Check the log and the bucket against each other, both ways. Changes nothing. Exit status 1 if anything
    is wrong.
    """
    found = find_cluster(environment)
    client = found.read(ClientSettings)
    place = _Place(
        database_url=require(client, "database_url"),
        store_url=require(client, "store_url"),
        cluster=client.cluster,
        sequencer=found.read(SequencerSettings),
        store=found.read(StoreSettings),
    )
    settings = found.read(DoctorSettings)
    console = Console()
    try:
        with console.status("Reading every object" if verify else "Listing every object"):
            wrong, diagnosis, tiers, owner, gone, agents = asyncio.run(_examine(place, verify, settings))
    except (SequencerUnavailable, StoreUnavailable, ValueError) as failed:
        raise UserError(str(failed)) from None
    _show_merging(tiers, console)
    _show(diagnosis, console)
    _show_gone(gone, console)
    console.print(owner, highlight=False, soft_wrap=True)
    not_ready = complaints(
        (f"Agent {agent.node_id} (zone {agent.address.zone})", agent.address.http_url) for agent in agents
    )
    for complaint in not_ready:
        console.print(f"[bold red]{escape(complaint)}[/]", highlight=False, soft_wrap=True)
    if wrong is not None:
        raise UserError(f"{wrong}.", "Agents refuse to work with this database and this store.")
    if not_ready or not diagnosis.is_healthy:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The database and the bucket, and how to reach them."""

    database_url: str
    store_url: str
    cluster: str
    sequencer: SequencerSettings
    store: StoreSettings


async def _examine(
    place: _Place, verify: bool, settings: DoctorSettings
) -> tuple[WrongStore | None, Diagnosis, Sequence[TierTotals], str, Sequence[GoneRange], Sequence[LiveAgent]]:
    """Also checks everything in a store that does not name this database: it may only have lost its
    identity object."""
    sequencer, wrong = await Sequencer.open(place.database_url, place.sequencer), None
    try:
        store = await open_store(place.store_url, place.store)
        try:
            try:
                await sequencer.store_identity.check(store, place.cluster, place.store_url)
            except WrongStore as found:
                wrong = found
            diagnosis = await examine(sequencer, store, place.cluster, verify, settings)
            state, now = await sequencer.ownership.state(), datetime.now(UTC)
            owner = owner_text(await read_owner(store, place.cluster), state, now)
            gone = await sequencer.gone_ranges.first(settings.doctor_findings)
            agents = await sequencer.agents.live()
            return wrong, diagnosis, await sequencer.merges.totals(), owner, gone, agents
        finally:
            await store.close()
    finally:
        await sequencer.close()


def _show_merging(tiers: Sequence[TierTotals], console: Console) -> None:
    """What merging has done since the cluster began. Empty if nothing."""
    amplification = write_amplification(tiers)
    if amplification is None or len(tiers) < 2:
        return
    shown = Table("merged", "objects", "MB", "runs", header_style="bold cyan")
    for column in shown.columns[1:]:
        column.justify = "right"
    for tier in tiers:
        name = f"tier {tier.tier}" if tier.tier else "uploaded"
        done = tier.done
        shown.add_row(name, f"{done.objects_out:,}", f"{done.bytes_out / 1e6:,.1f}", f"{done.runs_out:,}")
    console.print(shown)
    console.print(f"Write amplification {amplification:.2f}")


def _show_gone(gone: Sequence[GoneRange], console: Console) -> None:
    """Offsets that consumers skip. They are no fault of the log any more, but an operator should know of
    them."""
    if not gone:
        return
    shown = Table("offsets that are gone", "found at", "why", header_style="bold yellow")
    for one in gone:
        place = f"{one.topic}/{one.partition} {one.base_offset:,} to {one.last_offset:,}"
        shown.add_row(place, f"{one.found_at:%Y-%m-%d %H:%M:%S}", one.reason)
    console.print(shown)


def _show(diagnosis: Diagnosis, console: Console) -> None:
    seen = Table("looked at", "count", header_style="bold cyan")
    seen.columns[1].justify = "right"
    for sight, count in diagnosis.seen.items():
        if count:
            seen.add_row(sight.value, f"{count:,}")
    console.print(seen)
    if diagnosis.findings:
        wrong = Table("fault", "where", "what", header_style="bold red")
        for finding in diagnosis.findings:
            wrong.add_row(f"[red]{finding.fault.value}[/]", finding.where, finding.what.replace("[", "\\["))
        console.print(wrong)
    depth = "every byte verified" if diagnosis.contents_verified else "sizes checked; --verify reads contents"
    total = counted(sum(diagnosis.fault_counts.values()), "fault")
    verdict = "[bold green]Healthy[/]" if diagnosis.is_healthy else f"[bold red]{total}[/]"
    console.print(f"{verdict} ({depth})")
