"""An agent names variables that nothing reads, and keeps freed memory."""

import platform
import subprocess
import sys

import pytest

from agent.settings import AgentSettings
from tidelog.process.settings import ProcessSettings
from tidelog.process.start_agent import unknown_variables

MODELS = (AgentSettings, ProcessSettings)
PAGES_OF_AN_OBJECT = 2048
OBJECTS_FROM_A_THREAD = """
import resource, threading
from tidelog.process.start_agent import keep_freed_memory

keep_freed_memory()

def objects(count):
    kept = [b"x" * 8_388_608 for _ in range(4)]
    for number in range(count):
        kept[number % 4] = None
        kept[number % 4] = b"x" * 8_388_608

def run(count):
    thread = threading.Thread(target=objects, args=(count,))
    thread.start()
    thread.join()

run(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
run(32)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_objects_that_come_and_go_are_not_cleared_by_the_kernel_again() -> None:
    """32 of them, in the place of four."""
    command = [sys.executable, "-c", OBJECTS_FROM_A_THREAD]
    faults = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)

    assert faults < 2 * PAGES_OF_AN_OBJECT


def test_a_misspelt_setting_is_named_with_the_nearest_one() -> None:
    found = unknown_variables(
        {"TIDELOG_LINGER": "5", "TIDELOG_SEGMENT_SIZE_BYTE": "1", "PATH": "/bin"}, MODELS
    )

    assert found == {
        "TIDELOG_LINGER": ("TIDELOG_LINGER_MS",),
        "TIDELOG_SEGMENT_SIZE_BYTE": ("TIDELOG_SEGMENT_SIZE_BYTES",),
    }


def test_a_name_like_no_other_is_named_alone() -> None:
    assert unknown_variables({"TIDELOG_XQJ": "5"}, MODELS) == {"TIDELOG_XQJ": ()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIDELOG_BOOTSTRAP", "localhost:9092"),
        ("TIDELOG_CLUSTER", "tidelog"),
        ("tidelog_linger_ms", "5"),
        ("TIDELOG_HISTORY_SNAPSHOT_GRACE_S", "5"),
        ("TIDELOG_TEST_SEEDS", "5"),
        ("TIDELOG_ZONES", "a,b"),
        ("TIDELOG_SERVICE_HOST", "10.0.0.1"),
        ("TIDELOG_AGENT_SERVICE_PORT_KAFKA", "9092"),
        ("TIDELOG_PORT", "tcp://10.0.0.1:9092"),
        ("TIDELOG_PORT_9092_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_what_others_read_or_make_is_not_named(name: str, value: str) -> None:
    assert unknown_variables({name: value}, MODELS) == {}
