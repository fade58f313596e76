"""Guards the house: small files and functions, a docstring on every module, no leftovers, a map of every folder."""

import ast
import re
import subprocess
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
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


def imported(tree: ast.AST, modules: Collection[str]) -> Iterator[str]:
    """The modules that one imports as it is imported, or for its types alone; not those that its functions import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & set(modules)
            yield from inner or {node.module} & set(modules)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node, modules)


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source_files()
    }

    graph = {name: set(imported(ast.parse(path.read_text()), modules)) - {name} for name, path in modules.items()}

    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


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


WRITES_THE_ENVIRONMENT = {
    "tidelog/main.py": "every Python started from here reads PYTHONSAFEPATH",
    "spark_compaction/session.py": "PySpark reads its interpreter and address nowhere else",
    "storage/stores/s3_store.py": "obstore reads its number of threads nowhere else",
}
READS_THE_ENVIRONMENT = {
    "tidelog/process/environment.py": "the one place that reads settings",
    "tidelog/embedded/s3_endpoint.py": "rclone gets all but the user's own rclone settings",
    "spark_compaction/java.py": "JAVA_HOME, as the script that starts the JVM reads it",
    "storage/native/kernels.py": "XDG_CACHE_HOME, where a user's programs keep what they can make again",
}
_OF_OS = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})


def _uses_of_the_environment(tree: ast.Module) -> Iterator[bool]:
    """True for each that may write: `os.environ[...] = x`, `del`, or a call of one of its methods but `get` and
    `items`, and `os.putenv`."""
    above = {below: node for node in ast.walk(tree) for below in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            assert not {name.name for name in node.names} & _OF_OS, "write os.environ, which this test finds"
        if isinstance(node, ast.Attribute) and node.attr in _OF_OS and getattr(node.value, "id", "") == "os":
            user = above[node]
            is_read = isinstance(user, ast.Subscript) and isinstance(user.ctx, ast.Load)
            is_read |= isinstance(user, ast.Attribute) and user.attr in ("get", "items")
            is_read |= isinstance(user, ast.Call) and (node.attr.startswith("getenv") or node in user.args)
            yield not is_read


def test_settings_are_read_in_one_place_and_written_nowhere() -> None:
    """See docs/decisions/0113-settings-are-read-once.md."""
    uses = {
        path.relative_to(ROOT).as_posix(): list(_uses_of_the_environment(ast.parse(path.read_text())))
        for path in source_files()
    }

    assert {name for name, found in uses.items() if any(found)} == set(WRITES_THE_ENVIRONMENT)
    assert {name for name, found in uses.items() if found and not any(found)} == set(READS_THE_ENVIRONMENT)


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
