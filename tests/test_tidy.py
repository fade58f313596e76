"""Guards the house: small files and functions, a docstring on every module, no leftovers, a map of every folder."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("agent", "cache_ring", "compactor", "recovery", "sequencer", "spark_compaction", "storage", "tidelog")
FILE_LINES = 700
FUNCTION_LINES = 70
SQL_COLUMNS = 110
LEFTOVER = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")


def tracked(*patterns: str) -> list[Path]:
    """The files git knows, so that nobody's scratch files count."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, check=True, text=True, timeout=30
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def source_files() -> Iterator[Path]:
    yield from (path for path in tracked("*.py") if path.relative_to(ROOT).parts[0] in PACKAGES)


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT)) for path in tracked("*.py") if not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert silent == []


def test_a_source_file_is_one_concept() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in source_files()
        if (lines := len(path.read_text().splitlines())) > FILE_LINES
    }

    assert long == {}


def test_a_function_fits_a_screen() -> None:
    long = []
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} ({lines} lines)")

    assert long == []


def test_sql_wraps() -> None:
    wide = [
        f"{path.relative_to(ROOT)}:{number} ({len(line)} columns)"
        for path in tracked("*.sql")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > SQL_COLUMNS
    ]

    assert wide == []


def test_nothing_is_left_for_later() -> None:
    left = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.py", "*.sql", "*.java", "Makefile", ".ci/run")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if LEFTOVER.search(line)
    ]

    assert left == []


def test_nothing_runs_on_asyncios_default_executor() -> None:
    """It has no bound, and all parts of a process would share it: see storage/threads.py."""
    shared = re.compile(r"\bto_thread\(|run_in_executor\(\s*None")

    found = [str(path.relative_to(ROOT)) for path in source_files() if shared.search(path.read_text())]

    assert found == []


def test_every_module_logs_as_tidelog() -> None:
    """But for the one that sets the loggers up."""
    loggers = re.compile(r"^(\w+) = logging\.getLogger\((.*)\)$|logging\.getLogger\(", re.MULTILINE)

    others = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in source_files()
        if path != ROOT / "tidelog/process/logs.py"
        for found in loggers.finditer(path.read_text())
        if found.groups() != ("log", '"tidelog"')
    ]

    assert others == []


def test_every_log_line_is_an_event_with_fields() -> None:
    """Its message is a constant, and its values are `extra`."""
    levels = {"debug", "info", "warning", "error", "exception", "critical", "log"}
    mixed = []
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level)) if level in levels:
                    message = node.args[1:] if level == "log" else node.args
                    fields = {keyword.arg for keyword in node.keywords} - {"extra", "exc_info"}
                    if fields or not (len(message) == 1 and isinstance(message[0], ast.Constant)):
                        mixed.append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert mixed == []


def test_the_map_names_every_folder() -> None:
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    folders = {path.relative_to(ROOT).parent.as_posix() for path in tracked("*.py", "*.sql", "infra/*", "docs/*")} - {
        "."
    }
    mirrors = {folder for folder in folders if folder.removeprefix("tests/") in folders - {folder}}

    unnamed = sorted(folder for folder in folders - mirrors if f"`{folder}/`" not in architecture)

    assert unnamed == []


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_the_pages_a_reader_looks_for_are_there(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) > 5


def test_every_decision_is_in_the_index_and_has_its_parts() -> None:
    folder = ROOT / "docs/decisions"
    index = re.findall(r"\]\((\d{4}-[^)]+)\)", (folder / "README.md").read_text())
    pages = {page.name: page.read_text() for page in folder.glob("[0-9]*.md")}
    numbers = sorted(int(name[:4]) for name in pages)
    parts = ["Context", "Decision", "Measured", "Consequences"]

    assert sorted(index) == sorted(pages)
    assert numbers == list(range(1, len(pages) + 1))
    for name, text in pages.items():
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == [part for part in parts if part in headings], name
        assert set(headings) >= {"Context", "Decision"}, name


def test_every_link_between_pages_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in tracked("*.md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]

    assert broken == []
