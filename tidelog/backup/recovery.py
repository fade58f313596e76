"""What makes Postgres replay archived WAL when it starts on a restored base backup.

Promises that a restored server archives nothing until an operator turns archiving on. Two servers that
archive into the same place would spoil the archive.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tidelog.backup.barman import BaseBackup
from tidelog.errors import UserError

_SIGNAL = "recovery.signal"
_SETTINGS = "postgresql.auto.conf"


def parse_target(text: str) -> datetime:
    """A time such as 2026-11-21T18:30:00; UTC if it has no offset. Raises UserError."""
    try:
        target = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"'{text}' is no time.", "Write it as 2026-11-21T18:30:00, with +02:00 if not UTC."
        ) from None
    return target if target.tzinfo else target.replace(tzinfo=UTC)


def choose(backups: Sequence[BaseBackup], target: datetime | None) -> BaseBackup:
    """The newest base backup that ended before the target. Raises UserError if there is none."""
    if not backups:
        raise UserError(
            "There is no base backup in this bucket.",
            "`tidelog recover` can rebuild the log from the bucket alone.",
        )
    fitting = [backup for backup in backups if target is None or backup.ended_at <= target]
    if not fitting:
        raise UserError(
            (
                f"The oldest base backup ended at {backups[0].ended_at.isoformat()}, after the time that you "
                "name."
            ),
            "Choose a later time: Postgres replays WAL forwards only.",
        )
    return max(fitting, key=lambda backup: backup.ended_at)


def require_empty(directory: Path) -> None:
    """Creates the directory if it does not exist. Raises UserError if it is not empty."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        occupied = any(directory.iterdir())
    except OSError as refused:
        raise UserError(
            f"{directory} cannot be used: {refused.strerror}.", "Give --to an empty directory."
        ) from None
    if occupied:
        raise UserError(
            f"{directory} is not empty.", "Move its files elsewhere, or give --to another directory."
        )


def settings_text(restore_command: str, target: datetime | None) -> str:
    """The last lines of postgresql.auto.conf. They override earlier ones."""
    lines = {
        "restore_command": restore_command,
        "recovery_target_timeline": "latest",
        "recovery_target_action": "promote",
        "archive_mode": "off",
    }
    if target is not None:
        lines["recovery_target_time"] = target.isoformat(sep=" ")
    quoted = {name: value.replace("'", "''") for name, value in lines.items()}
    return "# By tidelog backup restore\n" + "".join(
        f"{name} = '{value}'\n" for name, value in quoted.items()
    )


def prepare(directory: Path, text: str) -> None:
    """Writes the settings and the signal, and gives all files to the directory's owner. If the data
    directory holds sockets, the backup has their lock files, which name a process that is gone; they are
    removed.
    """
    for lock in directory.glob(".s.PGSQL.*"):
        lock.unlink()
    with (directory / _SETTINGS).open("a") as settings:
        settings.write(text)
    (directory / _SIGNAL).touch()
    directory.chmod(0o700)
    owner = directory.stat()
    if os.geteuid() == 0:
        for folder, folders, files in os.walk(directory):
            for name in (*folders, *files):
                os.chown(Path(folder) / name, owner.st_uid, owner.st_gid, follow_symlinks=False)


def write_keys(path: Path, text: str, owner_of: Path) -> None:
    """A file that only the owner of `owner_of` reads."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        if os.geteuid() == 0:
            owner = owner_of.stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
