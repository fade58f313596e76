"""The embedded Postgres as the stack starts it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tidelog.embedded.postgres import EmbeddedPostgres


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not pytest's: run as root, Postgres becomes another user, whom pytest keeps out of its directories."""
    with tempfile.TemporaryDirectory(prefix="tidelog-test-pg-") as made:
        yield Path(made)


def test_a_first_start_that_was_interrupted_is_done_over(directory: Path) -> None:
    half_made = directory / "postgres.new"
    half_made.mkdir()
    (half_made / "PG_VERSION").write_text("18\n")

    server = EmbeddedPostgres(directory / "postgres")
    try:
        with psycopg.connect(server.start()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()

    assert not half_made.exists()
