"""The wheel with all extras, in a new environment: `tidelog dev` in an empty folder."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.installed_wheel import inherited, installed_wheel, run
from tests.support.waiting import wait_until


@pytest.mark.timeout(900)
def test_the_development_stack_runs_from_an_empty_folder(tmp_path: Path) -> None:
    with installed_wheel("[all]") as commands:
        tidelog = commands / "tidelog"
        with subprocess.Popen(
            [tidelog, "dev", "--history", "--kafka-port", "0", "--http-port", "0"],
            cwd=tmp_path,
            env=inherited(),
        ) as stack:
            try:
                wait_until(lambda: (tmp_path / ".tidelog" / "stack.json").exists(), timeout_s=300.0)
                at_once = ("--config", "tidelog.history.freshness.ms=1000")
                run(tidelog, "topics", "create", "greetings", "--partitions", "3", *at_once, cwd=tmp_path)
                run(tidelog, "produce", "greetings", said="one\ntwo\n", cwd=tmp_path)
                options = ("--from-beginning", "--max-messages", "2")
                consumed = run(tidelog, "consume", "greetings", *options, cwd=tmp_path)
                log = tmp_path / ".tidelog" / "logs" / "history.log"
                wait_until(lambda: "a round was written" in log.read_text(), timeout_s=240.0)
                shown = run(tidelog, "history", "show", "greetings", cwd=tmp_path)
            finally:
                stack.send_signal(signal.SIGINT)
                status = stack.wait(120)

    assert sorted(consumed.splitlines()[:2]) == ["one", "two"]
    assert "greetings" in shown, shown
    assert status in (0, 130)
