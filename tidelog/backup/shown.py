"""What `tidelog backup` prints.

Which servers have backups in the bucket, and how far their archived WAL reaches. Lists only the backups'
prefix.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from storage.segments.keys import backups_prefix
from storage.stores.object_store import ObjectStore
from tidelog.backup.barman import BaseBackup
from tidelog.backup.wanted import StatusLine, WantedSetting
from tidelog.output import as_text, counted

_WAL: Final = re.compile(r"(?P<server>[^/]+)/wals/[0-9A-F]{16}/(?P<name>[0-9A-F]{24})(\.[a-z0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArchive:
    """`wal_names` are whole WAL files. `newest_wal_at` is when the last of them was uploaded."""

    wal_names: frozenset[str] = frozenset()
    newest_wal_at: datetime | None = None
    size_bytes: int = 0


async def archived(store: ObjectStore, cluster: str) -> Mapping[str, ServerArchive]:
    """By server. Raises StoreUnavailable."""
    prefix = backups_prefix(cluster)
    names: dict[str, set[str]] = {}
    newest: dict[str, datetime] = {}
    sizes: dict[str, int] = {}
    async for info in store.list(prefix):
        path = info.key.removeprefix(prefix)
        server = path.split("/", 1)[0]
        sizes[server] = sizes.get(server, 0) + info.size_bytes
        if found := _WAL.fullmatch(path):
            names.setdefault(server, set()).add(found["name"])
            newest[server] = max(newest.get(server, info.modified_at), info.modified_at)
    return {
        server: ServerArchive(
            wal_names=frozenset(names.get(server, ())), newest_wal_at=newest.get(server), size_bytes=size
        )
        for server, size in sizes.items()
    }


@contextmanager
def progress(console: Console, doing: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    began_s = time.monotonic()
    with console.status(f"{doing}: {size(size_bytes)}") as line:

        def on_read(read_bytes: int) -> None:
            passed = as_text(time.monotonic() - began_s)
            line.update(f"{doing}: read {size(read_bytes)}, the databases have {size(size_bytes)}, {passed}")

        yield on_read


def show_checks(seen: Sequence[StatusLine], archive_url: str, console: Console) -> None:
    table = Table("looked at", "now", "what to do", header_style="bold cyan")
    for each in seen:
        color = "red" if each.is_fault else "yellow" if each.fix else "green"
        table.add_row(each.what, f"[{color}]{escape(each.now)}[/]", escape(each.fix))
    console.print(table)
    faults = sum(each.is_fault for each in seen)
    verdict = f"[bold red]{counted(faults, 'fault')}[/]" if faults else "[bold green]Can be restored[/]"
    console.print(f"{verdict} (backups below {archive_url})", highlight=False, soft_wrap=True)


def show_restored(backup: BaseBackup, directory: Path, passed_s: float, console: Console) -> None:
    steps = (
        (
            f"Start Postgres {backup.postgres_version // 10_000} on {directory}. It replays archived WAL, "
            "then opens."
        ),
        "Point TIDELOG_DATABASE_URL to it. No agent may run against it yet.",
        "`tidelog recover --dry-run` shows what the bucket has that this database lacks.",
        "`tidelog recover --take-over` makes this database the owner of the bucket. Then start the agents.",
        "`tidelog backup configure --apply`, restart Postgres, `tidelog backup run`: the restored server "
        "archives nothing until then.",
    )
    console.print(
        f"[green]Restored[/] base backup {backup.backup_id} of {backup.ended_at:%Y-%m-%d %H:%M:%S} UTC into"
        f" {directory} in {as_text(passed_s)}. Next:",
        highlight=False,
        soft_wrap=True,
    )
    for number, step in enumerate(steps, start=1):
        console.print(f"  {number}. {step}", highlight=False, soft_wrap=True)


def size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"


def show_wanted(wanted: Sequence[WantedSetting], keys_file: str | None, console: Console) -> None:
    """`keys_file` is None where no keys are needed."""
    table = Table("setting", "now", "takes effect", header_style="bold cyan")
    for setting in wanted:
        shown = escape(setting.now or "unset")
        table.add_row(
            setting.name, f"[green]{shown}[/]" if setting.is_right else f"[red]{shown}[/]", setting.effect
        )
    console.print(table)
    wrong = [setting for setting in wanted if not setting.is_right]
    if not wrong:
        console.print("[green]Nothing to set.[/]")
        return
    console.print("For postgresql.conf:", style="bold")
    for setting in wrong:
        typer.echo(setting.line)
    if keys_file is not None:
        console.print(
            f"Keys of the bucket, in {keys_file}, which belongs to Postgres's user and has mode 0600:",
            style="bold",
            soft_wrap=True,
            highlight=False,
        )
        typer.echo(
            "[default]\naws_access_key_id = TIDELOG_S3_ACCESS_KEY\naws_secret_access_key = "
            "TIDELOG_S3_SECRET_KEY"
        )
    console.print("`tidelog backup configure --apply` does it, on the database's machine.")
