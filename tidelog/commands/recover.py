"""`tidelog recover`: makes this database the owner of its bucket, after a copy, a restore or a failover."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from sequencer.client import Sequencer, SequencerSettings
from sequencer.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.ownership import OwnershipState, OwnershipUnconfirmed, TakenOver, read_owner
from sequencer.ownership_rules import OwnerObject
from sequencer.store_identity import WrongStore
from storage.object_store import ObjectStore, StoreSettings, StoreUnavailable
from storage.open_store import open_store
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.owner_text import owner_text
from tidelog.setting_options import with_settings
from tidelog.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_settings(ClientSettings, StoreSettings, SequencerSettings)
def recover(
    *,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Make this database the owner of the bucket, whoever owns it now.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make this database the owner of its bucket. Agents of the database that owned it stop serving within about a
    minute.
    """
    settings = find_cluster()
    database_url, store_url = require(settings, "database_url"), require(settings, "store_url")
    console = Console()
    try:
        owner, state = asyncio.run(_look(database_url, store_url, settings.cluster))
        console.print(owner_text(owner, state, datetime.now(UTC)), highlight=False, soft_wrap=True)
        if not take_over:
            console.print("Nothing was changed. With --take-over this database becomes the owner.")
            return
        if not yes:
            typer.confirm("Take the bucket over? Stop the agents of the other database first, if they run", abort=True)
        taken = asyncio.run(_take_over(database_url, store_url, settings.cluster))
    except (SequencerUnavailable, CommitOutcomeUnknown, StoreUnavailable, OwnershipUnconfirmed, WrongStore) as failed:
        raise UserError(f"{failed}.", "Repeating the command is safe.") from None
    before = "" if taken.before is None else f", in place of epoch {taken.before.epoch}"
    console.print(f"[green]Taken over[/]: this database owns the bucket with epoch {taken.epoch}{before}.")


@asynccontextmanager
async def _opened(database_url: str, store_url: str, cluster: str) -> AsyncIterator[tuple[Sequencer, ObjectStore]]:
    sequencer = await Sequencer.open(database_url)
    try:
        store = await open_store(store_url)
        try:
            await sequencer.store_identity.check(store, cluster, store_url)
            yield sequencer, store
        finally:
            await store.close()
    finally:
        await sequencer.close()


async def _look(database_url: str, store_url: str, cluster: str) -> tuple[OwnerObject | None, OwnershipState]:
    async with _opened(database_url, store_url, cluster) as (sequencer, store):
        return await read_owner(store, cluster), await sequencer.ownership.state()


async def _take_over(database_url: str, store_url: str, cluster: str) -> TakenOver:
    async with _opened(database_url, store_url, cluster) as (sequencer, store):
        return await sequencer.ownership.take_over(store, cluster)
