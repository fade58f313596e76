"""`tidelog backup` as an operator runs it: a real Postgres, a real bucket, Barman's own commands."""

import os
import pwd
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

from tests.support.directories import new_directory
from tests.support.s3 import BUCKET
from tidelog.backup import barman
from tidelog.cli import app
from tidelog.embedded.postgres import SYSTEM_USER, EmbeddedPostgres, EmbeddedPostgresSettings
from tidelog.embedded.s3_endpoint import S3Endpoint
from tidelog.errors import UserError

PATIENCE_S = 60.0
QUICK = EmbeddedPostgresSettings(durable=False)
PRUNE = {"dry prune": ("--dry-run",), "prune": ()}
Run = Callable[..., Result]
_IS_ARCHIVED = "SELECT coalesce(last_archived_wal, '') >= '{wal}' FROM pg_stat_archiver"


@contextmanager
def a_home() -> Iterator[Path]:
    """A directory for data directories, whose servers end with it."""
    with new_directory("backup") as directory:
        yield directory
        for data in directory.iterdir():
            if data.is_dir():
                EmbeddedPostgres(data, QUICK).kill()


@pytest.fixture
def home() -> Iterator[Path]:
    with a_home() as directory:
        yield directory


@pytest.fixture
def server(home: Path) -> EmbeddedPostgres:
    """A running Postgres that archives nothing."""
    postgres = EmbeddedPostgres(home / "original", QUICK)
    postgres.start()
    return postgres


def set_environment(
    patch: pytest.MonkeyPatch, server: EmbeddedPostgres | None, endpoint: S3Endpoint, store_url: str
) -> None:
    """As an operator's shell has it. Without a server: it is gone."""
    patch.setenv("TIDELOG_DATABASE_URL", server.url() if server else "postgresql://127.0.0.1:1/gone")
    patch.setenv("TIDELOG_STORE_URL", store_url)
    patch.setenv("TIDELOG_S3_ACCESS_KEY", endpoint.access_key)
    patch.setenv("TIDELOG_S3_SECRET_KEY", endpoint.secret_key)


def command(*arguments: str, status: int = 0) -> Result:
    """`command("status", status=1)` is `tidelog backup status`, which must end so."""
    result = CliRunner().invoke(app, ["backup", *arguments], catch_exceptions=False, env={"COLUMNS": "250"})
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def run(
    server: EmbeddedPostgres, s3_endpoint: S3Endpoint, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """`command` on the server."""
    set_environment(monkeypatch, server, s3_endpoint, store_url)
    return command


@pytest.fixture
def archiving(server: EmbeddedPostgres, run: Run) -> EmbeddedPostgres:
    """The server, set up by `tidelog backup configure`."""
    run("configure", "--apply")
    server.stop()
    server.start()
    return server


def execute(server: EmbeddedPostgres, *statements: str) -> Any:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchone() if cursor.description else None


def archived(server: EmbeddedPostgres) -> int:
    return int(execute(server, "SELECT archived_count FROM pg_stat_archiver")[0])


def archive_now(server: EmbeddedPostgres) -> None:
    """Returns when all that is committed is in the archive."""
    wal = execute(server, "SELECT pg_walfile_name(pg_current_wal_lsn())")[0]
    execute(server, "SELECT pg_switch_wal()")
    wait_until(lambda: execute(server, _IS_ARCHIVED.format(wal=wal))[0])


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "it did not come to hold"
        time.sleep(0.05)


def an_empty_directory(path: Path) -> Path:
    """Of the user as whom Postgres runs."""
    path.mkdir()
    if os.geteuid() == 0:
        owner = pwd.getpwnam(SYSTEM_USER)
        os.chown(path, owner.pw_uid, owner.pw_gid)
    return path


def started(directory: Path) -> EmbeddedPostgres:
    """A server on a restored directory, after it has replayed its WAL."""
    restored = EmbeddedPostgres(directory, QUICK)
    restored.start()
    wait_until(lambda: not execute(restored, "SELECT pg_is_in_recovery()")[0])
    return restored


def rows(server: EmbeddedPostgres) -> int:
    return int(execute(server, "SELECT count(*) FROM kept")[0])


def test_a_fresh_server_is_told_everything_that_it_lacks(run: Run) -> None:
    said = run("status", status=1).output

    assert "archive_mode" in said
    assert "tidelog backup configure" in said
    assert "tidelog backup run" in said


def test_configure_shows_exact_settings_and_no_secret_and_changes_nothing(
    run: Run, server: EmbeddedPostgres, s3_endpoint: S3Endpoint
) -> None:
    said = run("configure").output

    assert "archive_mode = 'on'" in said
    assert "barman-cloud-wal-archive" in said
    assert s3_endpoint.secret_key not in said
    assert execute(server, "SHOW archive_command")[0] == "(disabled)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A server with 1,000 rows took two base backups, of which pruning left one. Then it got 500 rows, and
    after `between` 500 more. All that was archived when its disk was lost.
    """

    home: Path
    store_url: str
    before: datetime
    between: datetime
    said: Mapping[str, str]


@pytest.fixture(scope="module")
def loss(s3_endpoint: S3Endpoint) -> Iterator[Loss]:
    with a_home() as home, pytest.MonkeyPatch.context() as patch:
        server = EmbeddedPostgres(home / "original", QUICK)
        server.start()
        store_url = s3_endpoint.store_url(BUCKET, "backups-of-a-lost-server")
        set_environment(patch, server, s3_endpoint, store_url)
        command("configure", "--apply")
        server.stop()
        server.start()
        before = datetime.now(UTC)
        execute(server, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS number")
        command("run")
        command("run")
        said = {name: command("prune", "--keep", "1", *option).output for name, option in PRUNE.items()}
        execute(server, "INSERT INTO kept SELECT generate_series(1001, 1500)")
        between = datetime.now(UTC)
        execute(server, "INSERT INTO kept SELECT generate_series(1501, 2000)")
        archive_now(server)
        said |= {name: command(name).output for name in ("status", "list")}
        server.kill()
        shutil.rmtree(home / "original")
        yield Loss(home=home, store_url=store_url, before=before, between=between, said=said)


@pytest.fixture(scope="module")
def restored(loss: Loss, s3_endpoint: S3Endpoint) -> EmbeddedPostgres:
    """A server on everything that was archived."""
    with pytest.MonkeyPatch.context() as patch:
        set_environment(patch, None, s3_endpoint, loss.store_url)
        command("restore", "--to", str(an_empty_directory(loss.home / "restored")))
    return started(loss.home / "restored")


def test_pruning_leaves_the_newest_backup_and_the_wal_that_it_needs(loss: Loss) -> None:
    assert "Would delete 2" in loss.said["dry prune"]
    assert "Deleted 1 base backup" in loss.said["prune"]
    assert loss.said["list"].count("WAL until") == 1
    assert "Can be restored" in loss.said["status"]


def test_a_backup_is_restored_to_its_last_row(restored: EmbeddedPostgres) -> None:
    assert rows(restored) == 2000


def test_a_backup_is_restored_to_a_time(
    loss: Loss, s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, None, s3_endpoint, loss.store_url)
    target = an_empty_directory(loss.home / "earlier")

    command("restore", "--to", str(target), "--target-time", loss.between.isoformat())

    assert rows(started(target)) == 1500


def test_a_restore_that_cannot_work_is_refused_before_it_begins(
    loss: Loss, s3_endpoint: S3Endpoint, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, None, s3_endpoint, loss.store_url)
    new = ("restore", "--to", str(loss.home / "never"))

    with pytest.raises(UserError, match="oldest base backup"):
        command(*new, "--target-time", loss.before.isoformat())
    with pytest.raises(UserError, match="WAL is archived until"):
        command(*new, "--target-time", "2999-01-01")
    with pytest.raises(UserError, match="is no time"):
        command(*new, "--target-time", "yesterday")
    with pytest.raises(UserError, match="not empty"):
        command("restore", "--to", str(loss.home))
    set_environment(monkeypatch, None, s3_endpoint, store_url)
    with pytest.raises(UserError, match="no base backup"):
        command(*new)
    assert not (loss.home / "never").exists()


def test_a_restored_server_archives_nothing_until_it_is_configured(
    loss: Loss, restored: EmbeddedPostgres, s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, restored, s3_endpoint, loss.store_url)
    off = execute(restored, "SHOW archive_mode")[0]
    said = command("status", status=1).output

    command("configure", "--apply")
    restored.stop()
    restored.start()
    archive_now(restored)

    assert off == "off"
    assert "archiving" in said
    assert "Can be restored" in command("status").output
    assert execute(restored, "SHOW restore_command")[0] == ""


def test_a_copy_of_the_data_directory_archives_nothing(archiving: EmbeddedPostgres, home: Path) -> None:
    archiving.stop()
    shutil.copytree(home / "original", home / "copy")
    if os.geteuid() == 0:
        owner = pwd.getpwnam(SYSTEM_USER)
        for path in [home / "copy", *(home / "copy").rglob("*")]:
            os.chown(path, owner.pw_uid, owner.pw_gid)
    copy = EmbeddedPostgres(home / "copy", QUICK)
    copy.start()

    execute(
        copy, "SELECT pg_stat_reset_shared('archiver')", "CREATE TABLE strange ()", "SELECT pg_switch_wal()"
    )

    wait_until(lambda: execute(copy, "SELECT failed_count FROM pg_stat_archiver")[0] > 0)
    assert archived(copy) == 0
    copy.kill()


def test_a_backup_of_a_server_that_cannot_archive_ends_with_a_reason(
    run: Run, archiving: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_BACKUP_WAL_WAIT_S", "1")
    execute(archiving, "ALTER SYSTEM SET archive_command = 'false'", "SELECT pg_reload_conf()")

    with pytest.raises(UserError, match="archived no WAL"):
        run("run")

    assert "fails" in run("status", status=1).output


@pytest.mark.usefixtures("archiving")
def test_a_backup_of_a_server_elsewhere_says_where_to_run(run: Run, home: Path) -> None:
    pid_file = home / "original" / "postmaster.pid"
    other = pid_file.read_text().splitlines()
    other[2] = str(int(other[2]) - 1000)  # another server's, in a directory of the same name
    pid_file.write_text("\n".join(other) + "\n")

    with pytest.raises(UserError, match="not readable here") as refused:
        run("run")

    assert "database's machine" in refused.value.fix


def test_a_store_without_buckets_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_STORE_URL", tmp_path.as_uri())

    with pytest.raises(UserError, match="S3 bucket"):
        run("list")


def test_a_tool_that_is_missing_is_named_with_how_to_install_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barman, "_find", lambda _: None)

    with pytest.raises(UserError, match="barman-cloud-backup is not installed") as refused:
        run("run")

    assert "tidelog[backup]" in refused.value.fix
