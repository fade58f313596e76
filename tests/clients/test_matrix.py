"""The page of clients has exactly the clients, features and gaps of its lists, and leaves nothing out."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.matrix import CLIENTS, FAILED, NOT_OFFERED, NOT_RUN, PASSED, parse_rows, tried
from tests.clients.matrix_plugin import Matrix
from tests.clients.not_offered import NOT_OFFERED as REASONS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "clients.md"


def test_the_page_has_a_row_for_every_client_and_feature() -> None:
    rows = parse_rows(PAGE.read_text())

    assert [(row.client, row.feature) for row in rows] == [
        (client.name, feature) for client in CLIENTS.values() for feature in client.features
    ]


def test_the_page_says_what_clients_do_not_offer_and_why() -> None:
    rows = parse_rows(PAGE.read_text())

    assert {(row.client, row.feature): row.evidence for row in rows if row.result == NOT_OFFERED} == REASONS


def test_everything_else_on_the_page_has_passed() -> None:
    rows = parse_rows(PAGE.read_text())

    assert [row for row in rows if row.result not in (PASSED, NOT_OFFERED)] == []


def test_a_test_cannot_name_what_the_page_does_not_know() -> None:
    with pytest.raises(ValueError, match="no client"):
        tried("franz", "offsets: seek")
    with pytest.raises(ValueError, match="no feature"):
        tried("franz-go", "transactions")


def test_one_failure_makes_a_row_a_failure() -> None:
    matrix = Matrix()
    matrix.note("sarama", "offsets: by time", "test_one[a]", FAILED)
    matrix.note("sarama", "offsets: by time", "test_one[a]", PASSED)
    matrix.note("sarama", "offsets: by time", "test_two", PASSED)
    matrix.note("sarama", "offsets: reset", "test_two", PASSED)
    matrix.note("kafkajs", "offsets: reset", "test_two", NOT_RUN)

    rows = {(row.client, row.feature): row for row in parse_rows(matrix.page("abc").text())}

    assert rows["sarama", "offsets: by time"].result == FAILED
    assert rows["sarama", "offsets: by time"].evidence == "`test_one`, `test_two`"
    assert rows["sarama", "offsets: reset"].result == PASSED
    assert rows["kafkajs", "offsets: reset"].result == NOT_RUN
    assert "kafkajs: offsets: by time" in matrix.unknown()
    assert "sarama: offsets: seek" not in matrix.unknown(), "it is not offered"


def test_a_run_of_a_part_keeps_the_other_rows_of_the_page() -> None:
    whole, part = Matrix(), Matrix()
    whole.note("sarama", "offsets: by time", "test_one[a]", PASSED)
    whole.note("sarama", "TLS", "test_old", PASSED)
    part.note("sarama", "TLS", "test_new", FAILED)

    kept = part.keep(whole.page("abc").text())
    page = part.page("def", kept, ["TLS"]).text()

    rows = {(row.client, row.feature): row for row in parse_rows(page)}
    assert rows["sarama", "offsets: by time"].evidence == "`test_one`"
    assert (rows["sarama", "TLS"].evidence, rows["sarama", "TLS"].result) == ("`test_new`", FAILED)
    assert "Commit: `abc`. At `def`: TLS." in page


def test_a_skip_is_a_failure_unless_a_toolchain_is_absent(tmp_path: Path) -> None:
    (tmp_path / "test_both.py").write_text(
        '"""Two ways to skip."""\n'
        "import pytest\n"
        "from tests.clients.matrix import tried\n"
        "from tests.clients.matrix_plugin import ToolchainAbsent\n"
        '@tried("franz-go", "offsets: seek")\n'
        "def test_tired(): pytest.skip('not today')\n"
        '@tried("sarama", "offsets: by time")\n'
        "def test_absent(): raise ToolchainAbsent('sarama', 'go')\n"
    )
    options = [
        "-q",
        "-p",
        "tests.clients.matrix_plugin",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]

    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert "1 failed, 1 skipped" in run.stdout, run.stdout + run.stderr
    assert "NOT RUN: sarama, this machine has no go" in run.stdout
