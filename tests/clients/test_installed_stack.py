"""The wheel with all extras, in a new environment: `tidelog dev` in an empty folder."""

import signal
import subprocess

import pytest

from tests.support.directories import new_directory
from tests.support.installed_wheel import inherited, installed_wheel, run
from tests.support.waiting import wait_until


@pytest.mark.timeout(900)
def test_the_development_stack_runs_from_an_empty_folder() -> None:
    with installed_wheel("[all]") as commands, new_directory("empty") as folder:
        tidelog = commands / "tidelog"
        with subprocess.Popen(
            [tidelog, "dev", "--history", "--kafka-port", "0", "--http-port", "0"],
            cwd=folder,
            env=inherited(),
        ) as stack:
            try:
                wait_until(lambda: (folder / ".tidelog" / "stack.json").exists(), timeout_s=300.0)
                at_once = ("--config", "tidelog.history.freshness.ms=1000")
                run(tidelog, "topics", "create", "greetings", "--partitions", "3", *at_once, cwd=folder)
                run(tidelog, "produce", "greetings", said="one\ntwo\n", cwd=folder)
                options = ("--from-beginning", "--max-messages", "2")
                consumed = run(tidelog, "consume", "greetings", *options, cwd=folder)
                log = folder / ".tidelog" / "logs" / "history.log"
                wait_until(lambda: "a round was written" in log.read_text(), timeout_s=240.0)
                shown = run(tidelog, "history", "show", "greetings", cwd=folder)
            finally:
                stack.send_signal(signal.SIGINT)
                status = stack.wait(120)

    assert sorted(consumed.splitlines()[:2]) == ["one", "two"]
    assert "greetings" in shown, shown
    assert status in (0, 130)
