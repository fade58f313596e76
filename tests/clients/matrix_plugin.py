"""Notes what the tests show about each client, lists clients that could not be run, and writes
`docs/clients.md`.

A plugin of pytest (see `tests/conftest.py`). A client whose toolchain is absent is listed as NOT RUN when the
run ends; any other skip of a test about a client is a failure.
"""

import importlib.metadata
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.outcomes import Skipped

from tests.clients.matrix import CLIENTS, FAILED, NOT_RUN, PASSED, Page, Row, parse_rows
from tests.clients.matrix import NOT_OFFERED as NOT_OFFERED_RESULT
from tests.clients.not_offered import NOT_OFFERED

_ROOT = Path(__file__).parents[2]


class ToolchainAbsent(Skipped):
    """The only reason to skip a test about a client."""

    def __init__(self, client: str, missing: str) -> None:
        super().__init__(f"{NOT_RUN}: {client}, this machine has no {missing}")


@dataclass(slots=True)
class Matrix:
    """Per client and feature, how each test of it ended."""

    versions: dict[str, str] = field(default_factory=dict)
    results: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    def note_version(self, client: str, version: str) -> None:
        """For clients that are no Python distribution and no jar of `tests/support/java_clients.xml`."""
        self.versions[client] = version

    def note(self, client: str, feature: str, test: str, result: str) -> None:
        """A failure stays a failure, whatever a later phase of the same test reports."""
        tests = self.results.setdefault((client, feature), {})
        if tests.get(test) != FAILED:
            tests[test] = result

    def keep(self, page: str) -> str:
        """Takes from an earlier page the rows that nothing was tried of. Returns that page's commit."""
        for row in parse_rows(page):
            if row.result != NOT_OFFERED_RESULT and (row.client, row.feature) not in self.results:
                for name in row.evidence.replace("`", "").split(", "):
                    self.note(row.client, row.feature, name, row.result)
        for line in page.splitlines():
            client, _, version = line.removeprefix("## ").partition(" ")
            if line.startswith("## ") and version:
                self.versions.setdefault(client, version.rpartition(" (")[0])
        return page.partition("Commit: `")[2].partition("`")[0]

    def unknown(self) -> list[str]:
        """What is missing for a complete page."""
        known = self.results.keys() | NOT_OFFERED.keys()
        return [
            f"{client.name}: {feature}"
            for client in CLIENTS.values()
            for feature in client.features
            if (client.name, feature) not in known
        ]

    def page(self, commit: str, kept: str = "", again: Collection[str] = ()) -> Page:
        rows = []
        for (client, feature), tests in self.results.items():
            worst = next((kind for kind in (FAILED, NOT_RUN) if kind in tests.values()), PASSED)
            names = sorted({name.split("[", 1)[0] for name in tests})
            rows.append(
                Row(client=client, feature=feature, result=worst, evidence=", ".join(f"`{n}`" for n in names))
            )
        rows += [
            Row(client=client, feature=feature, result=NOT_OFFERED_RESULT, evidence=evidence)
            for (client, feature), evidence in NOT_OFFERED.items()
        ]
        versions = {name: self.versions.get(name) or _distribution(name) or _jar(name) for name in CLIENTS}
        return Page(commit=commit, kept=kept, again=tuple(again), versions=versions, rows=tuple(rows))


def _distribution(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _jar(name: str) -> str:
    modules = ElementTree.parse(_ROOT / "tests" / "support" / "java_clients.xml")
    return next(
        (each.attrib["rev"] for each in modules.iter("dependency") if each.attrib["name"] == name), ""
    )


_MATRIX = pytest.StashKey[Matrix]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--clients-document", type=Path, help="write what the tests show about clients to this page"
    )
    parser.addoption(
        "--clients-document-part",
        action="store_true",
        help="keep the page's rows that this run tried nothing of, and say so on it",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_MATRIX] = Matrix()


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config) -> Matrix:
    """The matrix, for notes of versions."""
    return pytestconfig.stash[_MATRIX]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    marks = list(item.iter_markers("tried"))
    absent = call.excinfo is not None and call.excinfo.errisinstance(ToolchainAbsent)
    if report.skipped and not absent and (marks or item.get_closest_marker("clients")):
        report.outcome = "failed"
        report.longrepr = f"a test about a client may not be skipped: {report.longrepr}"
    result = NOT_RUN if absent else FAILED if report.failed else PASSED
    if result != PASSED or report.when == "call":
        for client, features in (mark.args for mark in marks):
            if absent:
                item.config.stash[_MATRIX].not_run[client] = str(call.excinfo.value) if call.excinfo else ""
            for feature in features:
                item.config.stash[_MATRIX].note(client, feature, item.name, result)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    matrix, path = config.stash[_MATRIX], config.getoption("--clients-document")
    for reason in matrix.not_run.values():
        terminalreporter.write_line(reason, yellow=True)
    if path is not None and matrix.unknown():
        terminalreporter.write_line(
            f"{path} was not written: nothing was tried or said of {matrix.unknown()}", red=True
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    matrix, path = session.config.stash[_MATRIX], session.config.getoption("--clients-document")
    if path is None:
        return
    kept, again = "", list(dict.fromkeys(feature for _, feature in matrix.results))
    if session.config.getoption("--clients-document-part"):
        kept = matrix.keep(path.read_text())
    if matrix.unknown():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    else:
        path.write_text(matrix.page(_commit(), kept, again).text())


def _commit() -> str:
    """The tree that was tested."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=, with changes"]
    return subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout.strip()
