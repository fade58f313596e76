"""The command as a person meets it: help, errors, settings as options."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from spark_compaction.job import SparkJobFailed
from tests.support.waiting import wait_until
from tidelog.cli import Commands, app
from tidelog.devstack.ports import picked_ports
from tidelog.devstack.stack_file import StackAddresses, locked, read_stack_file, write_stack_file
from tidelog.embedded.postgres import EmbeddedPostgres
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.process.environment import Environment
from tidelog.process.settings import ClientSettings
from tidelog.spark_errors import spark_command

ANSWERS = 3
"""Of /ready, each after a look at the database: by then the agent has tried its database many times."""
HEAVY = (
    "pyspark",
    "confluent_kafka",
    "pandas",
    "pyarrow",
    "numba",
    "fastapi",
    "psycopg",
    "pydantic",
    "httpx",
)
ADDRESSES = StackAddresses(
    database_url="postgresql://stack",
    store_url="s3://stack/",
    s3_access_key="key",
    s3_secret_key="secret",
    bootstrap="127.0.0.1:1",
    http_urls=("http://127.0.0.1:1",),
    zones=("a",),
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test starts in an empty directory, and no variable names a cluster."""
    for name in ADDRESSES.as_environment():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def run_process(*arguments: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidelog", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False, input=stdin
    )


def test_help_lists_every_command_without_importing_what_they_need() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from tidelog.cli import app;"
        "print(CliRunner().invoke(app, ['--help']).stdout);"
        f"print('imported', [name for name in {HEAVY!r} if name in sys.modules])"
    )

    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    ).stdout

    assert "imported []" in said
    assert all(entry.name in said for entry in Commands.entries)


def test_an_agent_without_options_starts_without_the_command_lines_library(tmp_path: Path) -> None:
    script = (
        "import sys; from tidelog.main import main; sys.argv = ['tidelog', 'agent']\n"
        "try: main()\n"
        "except SystemExit as ended: print('status', ended.code, 'typer', 'typer' in sys.modules)"
    )

    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )

    assert "TIDELOG_DATABASE_URL is not set" in ran.stderr
    assert "status 1 typer False" in ran.stdout


@pytest.mark.parametrize("command", [entry.name for entry in Commands.entries])
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])

    assert result.exit_code == 0, result.output
    assert "Usage" in result.stdout


@pytest.mark.parametrize("command", ["topics", "groups"])
def test_a_group_of_commands_alone_says_what_there_is(command: str) -> None:
    result = CliRunner().invoke(app, [command])

    assert "Usage" in result.stdout
    assert "describe" in result.stdout


def test_an_agents_settings_are_options_with_their_variables() -> None:
    result = CliRunner().invoke(app, ["agent", "--help"], env={"COLUMNS": "200"})

    for option, variable in (
        ("--linger-ms", "TIDELOG_LINGER_MS"),
        ("--page-cache-bytes", "TIDELOG_PAGE_CACHE_BYTES"),
        ("--database-pool-size", "TIDELOG_DATABASE_POOL_SIZE"),
        ("--retention-interval-s", "TIDELOG_RETENTION_INTERVAL_S"),
        ("--roles", "TIDELOG_ROLES"),
    ):
        assert option in result.stdout
        assert variable in result.stdout


@pytest.mark.parametrize("command", [entry.name for entry in Commands.entries])
def test_help_is_whole_on_a_narrow_terminal(command: str) -> None:
    said = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout

    assert "…" not in said
    assert "\\[" not in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_wrong_setting_is_named_without_a_traceback(tmp_path: Path) -> None:
    result = run_process("agent", "--linger-ms", "-1", cwd=tmp_path)

    assert result.returncode == 1
    assert "TIDELOG_LINGER_MS" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_agent_without_a_database_says_what_is_missing(tmp_path: Path) -> None:
    result = run_process("agent", "--store-url", "memory://x", cwd=tmp_path)

    assert result.returncode == 1
    assert "TIDELOG_DATABASE_URL is not set" in result.stderr


@pytest.mark.parametrize("store_url", ["ftp://host/dir", "bucket"])
def test_a_store_that_is_none_is_refused_before_anything_starts(tmp_path: Path, store_url: str) -> None:
    result = run_process("agent", "--store-url", store_url, "--database-url", "postgresql://x", cwd=tmp_path)

    assert result.returncode == 1
    assert "TIDELOG_STORE_URL" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_that_is_taken_ends_the_agent_with_a_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        where = ("--store-url", "memory://x", "--database-url", "postgresql://127.0.0.1:1/x")
        result = run_process("agent", *where, "--http-port", "0", "--kafka-port", str(port), cwd=tmp_path)

    assert result.returncode == 1
    assert f"127.0.0.1:{port} (TIDELOG_KAFKA_PORT)" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("wrong", ["postgresql//user:hush@host", "postgresql://me:a@hush@host/x"])
def test_a_database_url_that_is_none_is_refused_and_never_repeated(tmp_path: Path, wrong: str) -> None:
    migrated = run_process("migrate", "--database-url", wrong, cwd=tmp_path)
    served = run_process("agent", "--database-url", wrong, "--store-url", "memory://x", cwd=tmp_path)

    for result in (migrated, served):
        assert result.returncode == 1
        assert "TIDELOG_DATABASE_URL" in result.stderr
        assert "hush" not in result.stderr
        assert "Traceback" not in result.stderr


def test_a_database_that_is_away_is_told_once(tmp_path: Path) -> None:
    where = ("--database-url", "postgresql://127.0.0.1:1/x", "--store-url", (tmp_path / "objects").as_uri())
    result = run_process("doctor", *where, cwd=tmp_path)

    assert result.returncode == 1
    assert result.stderr.startswith("tidelog: cannot reach Postgres")
    assert result.stderr.count("connection failed") <= 1


def test_postgres_own_reason_is_told(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    where = ("--database-url", postgres.url("nobody_made_it"), "--store-url", (tmp_path / "objects").as_uri())
    result = run_process("doctor", *where, cwd=tmp_path)

    assert result.returncode == 1
    assert 'database "nobody_made_it" does not exist' in " ".join(result.stderr.split())


def test_without_a_cluster_a_command_says_how_to_get_one(tmp_path: Path) -> None:
    result = run_process("topics", "list", cwd=tmp_path)

    assert result.returncode == 1
    assert "tidelog dev" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_agent_that_is_not_there_is_an_error_to_act_on(tmp_path: Path) -> None:
    listed = run_process("topics", "list", "--http-url", "http://127.0.0.1:1", cwd=tmp_path)
    kafka = ("--bootstrap", "127.0.0.1:1", "--client-timeout-s", "1")
    consumed = run_process("consume", "t", *kafka, cwd=tmp_path)
    produced = run_process("produce", "t", *kafka, cwd=tmp_path, stdin="a line\n")

    told = ((listed, "TIDELOG_HTTP_URL"), (consumed, "TIDELOG_BOOTSTRAP"), (produced, "TIDELOG_BOOTSTRAP"))
    for result, variable in told:
        assert result.returncode == 1
        assert variable in result.stderr
        assert "Traceback" not in result.stderr


def test_a_running_stack_is_found_by_its_file(tmp_path: Path) -> None:
    data_dir = tmp_path / ".tidelog"
    data_dir.mkdir()
    write_stack_file(data_dir, ADDRESSES)

    with locked(data_dir):
        settings = find_cluster(Environment({})).read(ClientSettings)

    assert settings.http_url == "http://127.0.0.1:1"
    assert settings.bootstrap == "127.0.0.1:1"


def test_the_file_of_a_stack_that_was_killed_is_not_believed(tmp_path: Path) -> None:
    write_stack_file(tmp_path, ADDRESSES)

    assert read_stack_file(tmp_path) is None


def test_a_variable_wins_over_the_running_stack(tmp_path: Path) -> None:
    data_dir = tmp_path / ".tidelog"
    data_dir.mkdir()
    write_stack_file(data_dir, ADDRESSES)
    environment = Environment({"TIDELOG_HTTP_URL": "http://elsewhere"})

    with locked(data_dir):
        settings = find_cluster(environment).read(ClientSettings)

    assert settings.http_url == "http://elsewhere"
    assert settings.bootstrap is None


def test_two_stacks_never_share_a_directory(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UserError, match="--data-dir"), locked(tmp_path):
        pass


def test_the_stack_file_is_its_owners_alone(tmp_path: Path) -> None:
    write_stack_file(tmp_path, ADDRESSES)

    assert (tmp_path / "stack.json").stat().st_mode & 0o077 == 0


def test_a_spark_job_that_failed_is_told_in_a_sentence() -> None:
    environment = Environment({"TIDELOG_HTTP_URL": "http://127.0.0.1:1"})
    told = pytest.raises(UserError, match=r"a task failed\. Nothing was published")

    with told, spark_command(environment, "http_url"):
        raise SparkJobFailed("a task failed.")


def test_an_http_address_without_a_scheme_is_told_how_to_be_written() -> None:
    found = find_cluster(Environment({"TIDELOG_HTTP_URL": "localhost:8080"}))

    with pytest.raises(UserError, match="Write it as http://host:port"):
        require(found.read(ClientSettings), "http_url")


@pytest.mark.parametrize(("typed", "meant"), [(("topcis",), "topics"), (("topics", "creat"), "create")])
def test_a_command_that_is_misspelt_is_answered_with_the_one_like_it(
    typed: tuple[str, ...], meant: str
) -> None:
    result = CliRunner().invoke(app, [*typed])

    assert result.exit_code == 2
    assert f"Did you mean '{meant}'" in result.output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tidelog to", {"topics"}),
        ("tidelog topics de", {"describe", "delete"}),
        ("tidelog consume --id", {"--idle-s"}),
    ],
)
def test_the_shell_completes_commands_and_options(tmp_path: Path, typed: str, offered: set[str]) -> None:
    asked = {"_TIDELOG_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}

    said = subprocess.run(
        [Path(sys.executable).with_name("tidelog")],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**os.environ, **asked},
    )  # fmt: skip

    assert set(said.stdout.split()) == offered, said.stderr


def test_an_agents_options_stand_in_groups_that_fit_a_screen() -> None:
    said = CliRunner().invoke(app, ["agent", "--help"], env={"COLUMNS": "120"}).stdout

    groups: dict[str, list[str]] = {}
    for line in said.splitlines():
        if title := re.fullmatch(r"(\w.*):", line):
            groups[title[1]] = []
        elif option := re.match(r"  (?:-h, )?(--[a-z0-9-]+)", line):
            groups[list(groups)[-1]].append(option[1])

    assert len(groups) >= 12
    assert max(map(len, groups.values())) <= 24, {title: len(options) for title, options in groups.items()}
    assert "--linger-ms" in groups["Writing"]
    assert "--page-cache-bytes" in groups["Pages in memory"]
    assert "--retention-interval-s" in groups["Retention and deletion"]
    assert groups["Options"] == ["--help"]


def test_a_stack_starts_in_a_directory_with_folders_named_as_ours(stack_directory: Path) -> None:
    for name in ("agent", "storage", "tidelog"):
        (stack_directory / name).mkdir()
        (stack_directory / name / "__init__.py").write_text(
            f"raise ImportError('the {name} of another project')\n"
        )
    command = [str(Path(sys.executable).with_name("tidelog")), "dev", "--agents", "1", "--store", "local"]

    running = subprocess.Popen(
        [*command, "--kafka-port", "0", "--http-port", "0"],
        cwd=stack_directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    said = []
    for line in running.stdout:
        said.append(line)
        if "Ctrl-C" in line:
            running.send_signal(signal.SIGINT)
    status = running.wait(60)

    assert said[0] == "Making a database and starting Postgres ...\n", (
        "a pipe hears what is done while it is done"
    )
    assert "Tidelog is ready.\n" in said, "".join(said)
    assert status == 0


def test_an_agent_whose_database_stays_away_says_so_once(tmp_path: Path) -> None:
    quick = {
        "TIDELOG_DATABASE_URL": "postgresql://127.0.0.1:1/x", "TIDELOG_STORE_URL": "memory://x",
        "TIDELOG_CONNECT_BACKOFF_S": "0.01", "TIDELOG_DATABASE_POOL_TIMEOUT_S": "0.1",
        "TIDELOG_KAFKA_PORT": "0",
        "TIDELOG_LOG_FORMAT": "json",
    }  # fmt: skip
    with picked_ports(1) as [port]:
        agent = subprocess.Popen(
            [sys.executable, "-m", "tidelog", "agent", "--http-port", str(port)],
            cwd=tmp_path, env={**os.environ, **quick}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        answers = itertools.count(1)
        wait_until(lambda: is_not_ready(port) and next(answers) >= ANSWERS)
        agent.terminate()
        _, said = agent.communicate(timeout=60)

    told = [
        (line["event"], line.get("reason", ""))
        for line in map(json.loads, said.splitlines())
        if line["level"] in ("warning", "error")
    ]
    assert len(told) == len(set(told)), told
    assert any(
        event.startswith("agent waits") and "cannot reach Postgres" in reason for event, reason in told
    ), told


def is_not_ready(port: int) -> bool:
    """An agent's own answer, after it has looked at its database once more."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60).status_code == 503
    except httpx.TransportError:
        return False
