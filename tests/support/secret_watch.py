"""Fails a test that prints or logs a secret of the suite's fixtures: of its object stores and its users.

`watch` takes a secret. Whatever pytest captures of a test (what it and its processes print, and the log) is
searched when the test ends.
"""

from collections.abc import Generator

import pytest

_LEAST_LENGTH = 12
"""Shorter ones, such as `secret`, are words that a text may have."""
_watched: set[str] = set()


def watch(secret: str) -> None:
    if len(secret) >= _LEAST_LENGTH:
        _watched.add(secret)


def leaked(text: str) -> bool:
    return any(secret in text for secret in _watched)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.outcome != "passed":
        return report
    for where, text in report.sections:
        if leaked(text):
            report.outcome = "failed"
            report.longrepr = f"a secret of the suite's fixtures is in: {where}"
    return report
