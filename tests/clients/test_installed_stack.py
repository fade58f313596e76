"""The wheel with all extras, in an environment of its own: `tidelog dev` in an empty folder."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.installed_wheel import inherited, installed_wheel, run
from tests.waiting import wait_until


@pytest.mark.timeout(900)
def test_the_development_stack_runs_from_an_empty_folder(tmp_path: Path) -> None:
    with installed_wheel("[all]") as commands:
        tidelog = commands / "tidelog"
        with subprocess.Popen(
            [tidelog, "dev", "--kafka-port", "0", "--http-port", "0"], cwd=tmp_path, env=inherited()
        ) as stack:
            try:
                wait_until(lambda: (tmp_path / ".tidelog" / "stack.json").exists(), timeout_s=180.0)
                run(tidelog, "topics", "create", "greetings", "--partitions", "3", cwd=tmp_path)
                run(tidelog, "produce", "greetings", said="one\ntwo\n", cwd=tmp_path)
                options = ("--from-beginning", "--max-messages", "2")
                consumed = run(tidelog, "consume", "greetings", *options, cwd=tmp_path)
                shown = run(tidelog, "history", "show", "greetings", cwd=tmp_path)
            finally:
                stack.send_signal(signal.SIGINT)
                status = stack.wait(120)

    assert sorted(consumed.splitlines()[:2]) == ["one", "two"]
    assert "greetings" in shown, shown
    assert status in (0, 130)
