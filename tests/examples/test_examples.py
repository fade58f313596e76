"""The programs of `examples/` against a running stack, as a user runs them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.waiting import wait_until
from tidelog.devstack.ports import picked_ports
from tidelog.devstack.stack import Stack

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALONE = {
    "produce_and_consume.py": "hello cay",
    "consumer_group.py": "worked off",
    "idempotent_writes.py": "100000 records acknowledged",
    "zones.py": "zone b read: from zone a",
}
ON_HISTORY = {
    "history_by_pyiceberg.py": '"to": "OSL"',
    "history_by_pandas.py": "300 flights in",
    "history_by_duckdb.py": "300 flights to",
    "history_by_polars.py": "300 flights to",
}
OTHERS = {"history_by_spark.py", "web_service.py", "stack_store.py"}
Run = Callable[[str], str]


@pytest.fixture
def environment(stack: Stack) -> dict[str, str]:
    commands = Path(sys.executable).parent
    return {
        **os.environ,
        **stack.addresses.as_environment(),
        "TIDELOG_STACK": str(stack.data_dir / "stack.json"),
        "PATH": f"{commands}:{os.environ.get('PATH', '')}",
    }


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """A program's output; fails the test if it fails."""

    def running(program: str) -> str:
        ran = subprocess.run(
            [sys.executable, EXAMPLES / program], env=environment, capture_output=True, text=True, timeout=200
        )
        assert ran.returncode == 0, f"{program}: {ran.stdout}\n{ran.stderr}"
        return ran.stdout

    return running


def test_every_program_is_run_here_and_explained() -> None:
    programs = {file.name for file in EXAMPLES.glob("*.py")}

    assert programs == {*ALONE, *ON_HISTORY, *OTHERS}
    explained = (EXAMPLES / "README.md").read_text()
    assert all(program in explained for program in programs - {"stack_store.py"})


@pytest.mark.parametrize("program", ALONE)
def test_a_program_does_what_it_says(run: Run, program: str) -> None:
    assert ALONE[program] in run(program)


@pytest.mark.timeout(600)
def test_a_topic_becomes_a_table_for_every_engine(run: Run) -> None:
    assert "OSL" in run("history_by_spark.py")
    for program, expected in ON_HISTORY.items():
        assert expected in run(program), program


def test_the_web_service_answers_with_the_offset_of_its_event(environment: dict[str, str]) -> None:
    with picked_ports(1) as [port]:
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "web_service:app",
            "--port",
            str(port),
            "--app-dir",
            str(EXAMPLES),
        ]
        with subprocess.Popen(command, env=environment) as service:
            try:
                url = f"http://127.0.0.1:{port}/clicks"
                wait_until(lambda: _answers(url))
                answer = httpx.post(url, json={"page": "/"}, timeout=30)
            finally:
                service.terminate()

    assert answer.status_code == 202
    assert answer.json()["offset"] >= 0


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 405
    except httpx.TransportError:
        return False
