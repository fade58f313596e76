"""`tidelog migrate`: brings the database's schema up to date. Safe to run from several places at once."""

import asyncio

import typer
from rich.console import Console

from sequencer.database.database import SequencerUnavailable
from sequencer.migrate import MigrationRefused, migrate
from sequencer.settings import MigrationSettings
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require_owner_url
from tidelog.output import counted
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("migrate")
@with_settings(
    ClientSettings,
    MigrationSettings,
    only=("database_url", "migrations_database_url", "data_dir", *MigrationSettings.model_fields),
)
def migrate_database(environment: Environment) -> None:
    """Apply the migrations that the database lacks."""
    found = find_cluster(environment)
    database_url, settings = (
        require_owner_url(found.read(ClientSettings)),
        found.read(MigrationSettings),
    )
    try:
        applied = asyncio.run(migrate(database_url, settings))
    except SequencerUnavailable as away:
        raise UserError(" ".join(str(away).split())) from None
    except MigrationRefused as refused:
        raise UserError(f"{refused}.") from None
    if applied:
        Console().print(
            f"[green]Applied[/] {counted(len(applied), 'migration')}: {', '.join(map(str, applied))}."
        )
    else:
        Console().print("The schema is up to date.")
