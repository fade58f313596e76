"""`tidelog backup`: status, configure, run, list, restore, prune. Backups of the sequencer's Postgres, in
Tidelog's own bucket, made and read by Barman's commands.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from storage.stores.object_store import StoreSettings, StoreUnavailable
from storage.stores.open_store import open_store
from tidelog.backup import recovery
from tidelog.backup.archive import (
    ARCHIVE_PROGRAM,
    RESTORE_PROGRAM,
    Archive,
    NoArchive,
    default_keys_file,
    keys_text,
)
from tidelog.backup.barman import Barman, program, program_or_name
from tidelog.backup.server import LEFT_BY_A_RESTORE, Server, ServerState, connected
from tidelog.backup.settings import BackupSettings
from tidelog.backup.shown import (
    ServerArchive,
    archived,
    progress,
    show_checks,
    show_restored,
    show_wanted,
    size,
)
from tidelog.backup.wanted import Effect, WantedSetting, checks, wanted_settings
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.output import as_text, counted, print_json
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Base backups and archived WAL of the sequencer's Postgres, in Tidelog's bucket.",
)

_BUCKET_ALONE = ("store_url", "cluster", "data_dir", "s3_access_key", "s3_secret_key", "s3_region")
_WITH_DATABASE = ("database_url", *_BUCKET_ALONE)
_POLL_S = 0.1
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The bucket, and the commands that read its backups."""

    archive: Archive
    client: ClientSettings
    store_url: str
    store: StoreSettings
    settings: BackupSettings
    barman: Barman

    @classmethod
    def find(cls, environment: Environment) -> "_Place":
        found = find_cluster(environment)
        client, store, settings = (
            found.read(ClientSettings),
            found.read(StoreSettings),
            found.read(BackupSettings),
        )
        store_url = require(client, "store_url")
        try:
            archive = Archive.of(store_url, client.cluster, store)
        except NoArchive as refused:
            raise UserError(
                f"No place for backups: {refused}.",
                "Set TIDELOG_STORE_URL to s3://bucket/prefix?endpoint=...",
            ) from None
        except ValueError as wrong:
            raise UserError(f"TIDELOG_STORE_URL: {wrong}.") from None
        barman = Barman(archive, store, found.variables, timeout_s=settings.backup_list_timeout_s)
        return cls(
            archive=archive, client=client, store_url=store_url, store=store, settings=settings, barman=barman
        )

    def archived(self) -> Mapping[str, ServerArchive]:
        return asyncio.run(self._archived())

    async def _archived(self) -> Mapping[str, ServerArchive]:
        try:
            store = await open_store(self.store_url, self.store)
            try:
                return await archived(store, self.client.cluster)
            finally:
                await store.close()
        except (StoreUnavailable, ValueError) as failed:
            raise UserError(str(failed)) from None

    def keys_file(self, state: ServerState) -> str:
        return self.settings.backup_keys_file or default_keys_file(
            state.settings["data_directory"] or "postgres"
        )

    def wanted(self, state: ServerState) -> list[WantedSetting]:
        command = self.archive.archive_command(
            program_or_name(ARCHIVE_PROGRAM),
            state.system_identifier,
            state.settings["data_directory"] or "postgres",
            self.keys_file(state),
        )
        return wanted_settings(state, command, self.settings.backup_archive_timeout_s)


@app.command()
@with_settings(ClientSettings, BackupSettings, StoreSettings, only=(*_WITH_DATABASE, "backup_max_age_s"))
def status(environment: Environment, *, as_json: AsJson = False) -> None:
    """Show whether the database could be restored, and what is missing. Exit status 1 if anything is."""
    place = _Place.find(environment)
    with connected(require(place.client, "database_url"), place.settings.backup_list_timeout_s) as server:
        state = server.state()
    with Console().status("Reading the bucket"):
        found = place.archived().get(state.system_identifier)
        backups = place.barman.backups(state.system_identifier) if found is not None else []
    wal = state.last_archived_wal
    is_there = None if wal is None or "." in wal or found is None else wal in found.wal_names
    seen = checks(
        state, place.wanted(state), backups[-1].ended_at if backups else None,
        is_there, max_age_s=place.settings.backup_max_age_s,
    )  # fmt: skip
    if as_json:
        print_json(
            [{"what": each.what, "now": each.now, "fix": each.fix, "fault": each.is_fault} for each in seen]
        )
    else:
        show_checks(seen, place.archive.url, Console())
    if any(each.is_fault for each in seen):
        raise typer.Exit(1)


@app.command()
@with_settings(
    ClientSettings, BackupSettings, StoreSettings,
    only=(*_WITH_DATABASE, "backup_archive_timeout_s", "backup_keys_file"),
)  # fmt: skip
def configure(
    environment: Environment,
    *,
    apply: Annotated[
        bool, typer.Option("--apply", help="Change the settings. Without it, only show them.")
    ] = False,
) -> None:
    """Show what Postgres needs so that it archives its WAL into the bucket. --apply sets it."""
    place = _Place.find(environment)
    console = Console()
    with connected(require(place.client, "database_url"), place.settings.backup_list_timeout_s) as server:
        state = server.state()
        wanted = place.wanted(state)
        if apply:
            _apply(place, server, state, wanted, console)
        else:
            show_wanted(wanted, place.keys_file(state) if place.archive.has_keys else None, console)


@app.command()
@with_settings(
    ClientSettings, BackupSettings, StoreSettings, only=(*_WITH_DATABASE, "backup_jobs", "backup_wal_wait_s")
)
def run(environment: Environment) -> None:
    """Take a base backup. Runs on the database's machine, as root or as Postgres's own user."""
    place = _Place.find(environment)
    database_url = require(place.client, "database_url")
    program("barman-cloud-backup")
    console = Console()
    began_s = time.monotonic()
    with connected(database_url, place.settings.backup_list_timeout_s) as server:
        state = server.state()
        _require_here(state)
        with console.status("Waiting until Postgres has archived a WAL file"):
            _prove_archiving(server, state, place.settings.backup_wal_wait_s)
    with progress(console, "Backing up", state.size_bytes) as on_read:
        place.barman.back_up(state.system_identifier, database_url, place.settings.backup_jobs, on_read)
    newest = place.barman.backups(state.system_identifier)[-1]
    console.print(
        f"[green]Base backup {newest.backup_id}[/] of {size(newest.size_bytes)} in"
        f" {as_text(time.monotonic() - began_s)}, below {place.archive.url}/{newest.server}/.",
        highlight=False,
        soft_wrap=True,
    )


@app.command("list")
@with_settings(ClientSettings, StoreSettings, only=_BUCKET_ALONE)
def list_backups(environment: Environment, *, as_json: AsJson = False) -> None:
    """Every base backup in the bucket, and until when WAL is archived. Needs no database."""
    place = _Place.find(environment)
    servers = place.archived()
    backups = [backup for server in servers for backup in place.barman.backups(server)]
    if as_json:
        print_json(
            [
                {
                    "backup": backup.backup_id,
                    "server": backup.server,
                    "ended_at": backup.ended_at.isoformat(),
                    "size_bytes": backup.size_bytes,
                    "timeline": backup.timeline,
                }
                for backup in backups
            ]
        )
        return
    console = Console()
    if not backups:
        console.print(f"No base backup in {place.archive.url}. Make one: `tidelog backup run`.")
        return
    table = Table(
        "backup", "of server", "ended (UTC)", "size", "timeline", "Postgres", header_style="bold cyan"
    )
    for backup in backups:
        table.add_row(
            f"[bold]{backup.backup_id}[/]", backup.server, f"{backup.ended_at:%Y-%m-%d %H:%M:%S}",
            size(backup.size_bytes), str(backup.timeline), str(backup.postgres_version // 10_000),
        )  # fmt: skip
    console.print(table)
    for server, found in servers.items():
        until = f"until {found.newest_wal_at:%Y-%m-%d %H:%M:%S} UTC" if found.newest_wal_at else "none"
        console.print(f"Server {server}: WAL {until}, {size(found.size_bytes)} in all.", highlight=False)


@app.command()
@with_settings(ClientSettings, BackupSettings, StoreSettings, only=(*_BUCKET_ALONE, "backup_keys_file"))
def restore(
    *,
    environment: Environment,
    to: Annotated[Path, typer.Option("--to", help="An empty data directory.", show_default=False)],
    target_time: Annotated[
        str | None,
        typer.Option(
            help="Replay up to this time (UTC if it has no offset). By default, replay all archived WAL."
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            help="Which server's backups. By default, those of the server with the newest backup.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Unpack a base backup into an empty directory, and let Postgres replay archived WAL when it starts
    there.
    """
    place = _Place.find(environment)
    replay = program(RESTORE_PROGRAM)
    target = recovery.parse_target(target_time) if target_time else None
    directory = to.expanduser().resolve()
    console = Console()
    servers = place.archived()
    every = [found for name in servers if server in (None, name) for found in place.barman.backups(name)]
    newest_server = max(every, key=lambda found: found.ended_at).server if every else None
    backup = recovery.choose([found for found in every if found.server == newest_server], target)
    newest_wal_at = servers[backup.server].newest_wal_at
    if target is not None and newest_wal_at is not None and target > newest_wal_at:
        raise UserError(
            f"WAL is archived until {newest_wal_at.isoformat()} only.",
            "Leave --target-time out to replay all of it.",
        )
    recovery.require_empty(directory)
    began_s = time.monotonic()
    with progress(console, f"Restoring {backup.backup_id}", backup.size_bytes) as on_read:
        place.barman.restore(backup, directory, on_read)
    keys_file = place.settings.backup_keys_file or default_keys_file(str(directory))
    keys = keys_text(place.store)
    if keys is not None:
        recovery.write_keys(Path(keys_file), keys, directory)
    command = place.archive.restore_command(replay, backup.server, keys_file)
    recovery.prepare(directory, recovery.settings_text(command, target))
    show_restored(backup, directory, time.monotonic() - began_s, console)


@app.command()
@with_settings(ClientSettings, StoreSettings, only=_WITH_DATABASE)
def prune(
    *,
    environment: Environment,
    keep: Annotated[
        int, typer.Option("--keep", min=1, help="How many base backups to keep.", show_default=False)
    ],
    server: Annotated[
        str | None,
        typer.Option(help="Which server's backups. By default, the database's.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
) -> None:
    """Delete all but the newest base backups, and WAL that none of those needs."""
    place = _Place.find(environment)
    name = server
    if name is None:
        with connected(
            require(place.client, "database_url"), place.settings.backup_list_timeout_s
        ) as connection:
            name = connection.state().system_identifier
    before = place.barman.backups(name)
    going = before[:-keep]
    console = Console()
    if not going:
        console.print(f"Nothing to delete: {counted(len(before), 'base backup')}.")
        return
    if not dry_run:
        size_bytes = place.archived()[name].size_bytes
        with console.status(f"Deleting {counted(len(going), 'base backup')}"):
            place.barman.prune(name, keep)
        freed = size_bytes - place.archived()[name].size_bytes
        console.print(
            f"[green]Deleted[/] {counted(len(going), 'base backup')}, {size(freed)} with their WAL."
        )
        return
    console.print(
        f"Would delete {', '.join(backup.backup_id for backup in going)}, and WAL before "
        f"{before[-keep].begin_wal}."
    )


def _apply(
    place: _Place, server: Server, state: ServerState, wanted: Sequence[WantedSetting], console: Console
) -> None:
    if state.in_recovery:
        raise UserError("This server is a standby, or is being restored.", "Do it on the primary.")
    keys, keys_file = keys_text(place.store), place.keys_file(state)
    if keys is not None and not state.runs_here():
        raise UserError(
            "Postgres runs on another machine, and its file of keys can be written only there.",
            (
                "Run this command on the database's machine; without --apply it shows all there is to set by "
                "hand."
            ),
        )
    program(ARCHIVE_PROGRAM)
    if keys is not None:
        recovery.write_keys(Path(keys_file), keys, Path(state.settings["data_directory"] or ""))
        console.print(
            f"Keys are in {keys_file}, readable by Postgres's user.", highlight=False, soft_wrap=True
        )
    changed = {setting.name: setting.wanted for setting in wanted if not setting.is_right}
    server.change(changed, LEFT_BY_A_RESTORE)
    for name in changed:
        console.print(f"[green]Set[/] {name}")
    restarts = [
        setting.name for setting in wanted if setting.name in changed and setting.effect is Effect.RESTART
    ]
    if restarts:
        console.print(f"[yellow]Restart Postgres[/] for {', '.join(restarts)}; then `tidelog backup run`.")
    elif not changed:
        console.print("Postgres is already set up.")


def _require_here(state: ServerState) -> None:
    """Raises UserError unless a base backup can be read from this machine's disk."""
    if state.in_recovery:
        raise UserError(
            "This server is a standby, or is being restored.", "Run this command on the primary's machine."
        )
    if not state.runs_here():
        raise UserError(
            f"The data directory {state.settings['data_directory'] or ''} of this Postgres is not "
            "readable here. A base backup copies its files.",
            "Run this command on the database's machine (in its container), as root or as Postgres's user."
            " A managed Postgres makes its own backups; use those.",
        )
    if not state.is_archiving:
        raise UserError(
            "Postgres does not archive its WAL, and a base backup cannot be restored without it.",
            "Run `tidelog backup configure --apply`, and restart Postgres.",
        )


def _prove_archiving(server: Server, before: ServerState, timeout_s: float) -> None:
    """Check this first: a base backup ends when its WAL is archived, and would otherwise wait for ever.
    Raises UserError.
    """
    server.switch_wal()
    until = time.monotonic() + timeout_s
    while server.state().archived_count <= before.archived_count:
        if time.monotonic() > until:
            raise UserError(
                f"Postgres archived no WAL within {timeout_s:g} s.",
                "Its log says why archive_command fails; `tidelog backup configure` shows the one to set.",
            )
        time.sleep(_POLL_S)
