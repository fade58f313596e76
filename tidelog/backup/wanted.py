"""Which settings of Postgres a backup needs, and which of them are missing now.

Pure: time is a parameter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tidelog.backup.server import ServerState

_MOST_ARCHIVE_TIMEOUTS = 3
_ARCHIVES_SOON_S = 120.0


class Effect(StrEnum):
    """When Postgres takes a changed setting."""

    RESTART = "after a restart"
    RELOAD = "at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSetting:
    """`now` is None if the role may not read it."""

    name: str
    now: str | None
    wanted: str
    effect: Effect
    is_right: bool

    @property
    def line(self) -> str:
        """For postgresql.conf."""
        value = self.wanted.replace("'", "''")
        return f"{self.name} = '{value}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusLine:
    """One line of the status. `fix` is empty if nothing is wrong."""

    what: str
    now: str
    fix: str = ""
    is_fault: bool = False


def wanted_settings(state: ServerState, archive_command: str, archive_timeout_s: int) -> list[WantedSetting]:
    """The lines that postgresql.conf should have."""
    level, mode = state.settings["wal_level"], state.settings["archive_mode"]
    timeout, commits = state.settings["archive_timeout"], state.settings["synchronous_commit"]
    return [
        _setting("wal_level", level, "replica", Effect.RESTART, is_right=level in ("replica", "logical")),
        _setting("archive_mode", mode, "on", Effect.RESTART, is_right=mode in ("on", "always")),
        _setting(
            "archive_command", state.settings["archive_command"], archive_command, Effect.RELOAD,
            is_right=state.settings["archive_command"] == archive_command,
        ),
        _setting(
            "archive_timeout", timeout, str(archive_timeout_s), Effect.RELOAD,
            is_right=timeout is not None and 0 < int(timeout) <= archive_timeout_s,
        ),
        _setting(
            "synchronous_commit", commits, "on", Effect.RELOAD, is_right=commits in ("on", "remote_apply"),
        ),
        *[
            _setting(name, state.settings[name], "on", Effect.RELOAD, is_right=state.settings[name] == "on")
            for name in ("fsync", "full_page_writes")
        ],
    ]  # fmt: skip


def checks(
    state: ServerState,
    wanted: Iterable[WantedSetting],
    newest_backup_at: datetime | None,
    last_wal_is_in_bucket: bool | None,
    *,
    max_age_s: float,
) -> list[StatusLine]:
    """Everything that an operator looks at, including faults."""
    return [
        _settings_check(wanted, state),
        *_archiving_checks(state, last_wal_is_in_bucket),
        _backup_check(state.now, newest_backup_at, max_age_s),
        _standby_check(state),
    ]


def _setting(name: str, now: str | None, wanted: str, effect: Effect, *, is_right: bool) -> WantedSetting:
    return WantedSetting(
        name=name, now=now, wanted=now if is_right and now else wanted, effect=effect, is_right=is_right
    )


def _settings_check(wanted: Iterable[WantedSetting], state: ServerState) -> StatusLine:
    if waiting := sorted(state.pending_restart):
        return StatusLine(
            what="settings", now=f"{', '.join(waiting)} changed", fix="restart Postgres", is_fault=True
        )
    if wrong := [setting.name for setting in wanted if not setting.is_right]:
        return StatusLine(
            what="settings", now=f"not set: {', '.join(wrong)}", fix="tidelog backup configure", is_fault=True
        )
    return StatusLine(what="settings", now="as they should be")


def _archiving_checks(state: ServerState, last_wal_is_in_bucket: bool | None) -> Sequence[StatusLine]:
    if not state.is_archiving:
        return [StatusLine(what="WAL archiving", now="off", fix="tidelog backup configure", is_fault=True)]
    if state.is_failing:
        return [
            StatusLine(
                what="WAL archiving",
                now=f"fails: {state.last_failed_wal}",
                fix="see Postgres's own log; WAL fills its disk until this is mended",
                is_fault=True,
            )
        ]
    if state.last_archived_at is None:
        return [
            StatusLine(
                what="WAL archiving", now="nothing archived yet", fix="tidelog backup run", is_fault=True
            )
        ]
    age = state.now - state.last_archived_at
    timeout_s = int(state.settings["archive_timeout"] or 0)
    late = age > timedelta(seconds=max(_MOST_ARCHIVE_TIMEOUTS * timeout_s, _ARCHIVES_SOON_S))
    found = [
        StatusLine(
            what="WAL archiving",
            now=f"{state.last_archived_wal}, {age.total_seconds():.0f} s ago",
            fix="if Tidelog's agents run, see Postgres's own log" if late else "",
            is_fault=late,
        )
    ]
    if last_wal_is_in_bucket is False:
        found.append(
            StatusLine(
                what="WAL in this bucket",
                now=f"{state.last_archived_wal} is missing",
                fix="archive_command writes elsewhere: tidelog backup configure",
                is_fault=True,
            )
        )
    return found


def _backup_check(now: datetime, newest_backup_at: datetime | None, max_age_s: float) -> StatusLine:
    if newest_backup_at is None:
        return StatusLine(what="base backup", now="none", fix="tidelog backup run", is_fault=True)
    age = now - newest_backup_at
    old = age.total_seconds() > max_age_s
    shown = f"{newest_backup_at:%Y-%m-%d %H:%M} UTC, {age.total_seconds() / 3600:.1f} h ago"
    return StatusLine(what="base backup", now=shown, fix="tidelog backup run" if old else "", is_fault=old)


def _standby_check(state: ServerState) -> StatusLine:
    names = state.settings["synchronous_standby_names"]
    if not names:
        return StatusLine(
            what="synchronous standby",
            now="none",
            fix="a lost primary loses what was acknowledged since the last archived WAL; see docs/backup.md",
        )
    if state.synchronous_standbys == 0:
        return StatusLine(
            what="synchronous standby",
            now=f"'{names}' is not connected",
            fix="start it: commits wait for it",
            is_fault=True,
        )
    return StatusLine(what="synchronous standby", now=f"{state.synchronous_standbys} connected")
