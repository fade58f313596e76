"""The embedded server itself."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tidelog.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresFailed


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tidelog-test-pg-") as made:
        yield Path(made) / "data"


def test_data_survives_a_stop_and_a_crash_and_a_running_server_is_adopted(directory: Path) -> None:
    server = EmbeddedPostgres(directory)
    url = server.start()
    try:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept (number int)")
            connection.execute("INSERT INTO kept VALUES (1)")
            setting = connection.execute("SHOW synchronous_commit").fetchone()
        assert setting == ("on",)

        assert EmbeddedPostgres(directory).start() == url, "another process finds it running"
        server.stop()
        assert not server.is_running()
        server.stop()

        server.start()
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO kept VALUES (2)")
        server.kill()
        server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT number FROM kept ORDER BY 1").fetchall() == [(1,), (2,)]
    finally:
        server.stop()


def test_a_path_too_long_for_a_socket_gets_one_elsewhere(directory: Path) -> None:
    """The server of the test before, moved."""
    server = EmbeddedPostgres(directory.rename(directory.with_name("x" * 100)))
    try:
        with psycopg.connect(server.start()) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (2,)
    finally:
        server.stop()


def test_a_directory_that_is_not_a_servers_is_a_clear_error() -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-test-pg-") as directory:
        (Path(directory) / "precious").write_text("not Postgres")

        with pytest.raises(EmbeddedPostgresFailed, match="not empty"):
            EmbeddedPostgres(Path(directory)).start()
