"""A running stack: Postgres, an S3 endpoint and two agents in zones a and b, on free ports.

A session shares `stack`, so tests must not harm it. Its groups form at once. A test that kills agents makes
its own stack with `new_stack`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.directories import new_directory
from tidelog.devstack.stack import Stack, StackSettings
from tidelog.process.environment import Environment


def _new_directory() -> Iterator[Path]:
    with new_directory("stack") as directory:
        yield directory


session_directory = pytest.fixture(_new_directory, scope="session", name="session_directory")
module_directory = pytest.fixture(_new_directory, scope="module", name="module_directory")
stack_directory = pytest.fixture(_new_directory, name="stack_directory")


HERE = Environment.of_process()
"""The variables that a test's stack gets."""
QUICK_GROUPS = {
    "TIDELOG_MEMBERSHIP_LEASE_S": "60",
    "TIDELOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "200",
    "TIDELOG_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
}


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    with (
        new_directory("stack") as directory,
        Stack(
            StackSettings(environment=HERE, data_dir=directory / "stack", agent_environment=QUICK_GROUPS)
        ) as running,
    ):
        yield running


@pytest.fixture
def new_stack(stack_directory: Path) -> Iterator[Callable[..., Stack]]:
    """`new_stack(agents=3, agent_environment={...})` starts a stack that ends with the test."""
    with ExitStack() as started:

        def start(**settings: Any) -> Stack:
            return started.enter_context(
                Stack(StackSettings(environment=HERE, **{"data_dir": stack_directory / "stack", **settings}))
            )

        yield start
