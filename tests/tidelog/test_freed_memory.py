"""What an agent does with memory that was freed."""

import platform
import subprocess
import sys

import pytest

PAGES_OF_AN_OBJECT = 2048
OBJECTS_FROM_A_THREAD = """
import resource, threading
from tidelog.process.freed_memory import keep_freed_memory

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
