"""`tidelog doctor`: does every row have its object, and every object its row?"""

import asyncio
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from compactor.diagnosis import Diagnosis
from compactor.doctor import DoctorSettings, examine
from sequencer.client import Sequencer, SequencerSettings
from sequencer.database import SequencerUnavailable
from storage.object_store import StoreSettings, StoreUnavailable
from storage.open_store import open_store
from tidelog.counted import counted
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.setting_options import with_settings
from tidelog.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_settings(ClientSettings, DoctorSettings, StoreSettings, SequencerSettings)
def doctor(
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Also read every object, and check every byte.")] = False,
) -> None:
    """Check the log and the bucket against each other, both ways. Changes nothing; exit status 1 if anything is
    wrong.
    """
    settings = find_cluster()
    database_url, store_url = require(settings, "database_url"), require(settings, "store_url")
    console = Console()
    try:
        with console.status("Reading every object" if verify else "Listing every object"):
            diagnosis = asyncio.run(_examine(database_url, store_url, settings.cluster, verify))
    except (SequencerUnavailable, StoreUnavailable, ValueError) as failed:
        raise UserError(str(failed)) from None
    _show(diagnosis, console)
    if not diagnosis.is_healthy:
        raise typer.Exit(1)


async def _examine(database_url: str, store_url: str, cluster: str, verify: bool) -> Diagnosis:
    sequencer = await Sequencer.open(database_url)
    try:
        store = await open_store(store_url)
        try:
            return await examine(sequencer, store, cluster, verify)
        finally:
            await store.close()
    finally:
        await sequencer.close()


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
