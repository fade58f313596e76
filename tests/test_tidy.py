"""Guards the house: a docstring on every module, no circles, no leftovers, a map of every folder."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "agent",
    "cache_ring",
    "compactor",
    "erasure",
    "pyspark_tidelog",
    "recovery",
    "sequencer",
    "spark_compaction",
    "spark_source",
    "storage",
    "tidelog",
)
SHOWN = 5
SMALL_LINES = 60
COLUMNS = 110
LEFTOVER = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")


def tracked(*patterns: str) -> list[Path]:
    """The files that git knows. Scratch files do not count."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
        timeout=30,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def source_files() -> Iterator[Path]:
    yield from (path for path in tracked("*.py") if path.relative_to(ROOT).parts[0] in PACKAGES)


def source_modules() -> dict[str, Path]:
    """The file of each module and package, by its name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source_files()
    }


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in tracked("*.py")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert silent == []


def test_sizes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A report, not a limit: a limit makes people cut at the line (CONTRIBUTING.md)."""
    files: list[tuple[int, str]] = []
    functions: list[tuple[int, str]] = []
    for path in source_files():
        name, text = str(path.relative_to(ROOT)), path.read_text()
        files.append((len(text.splitlines()), name))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                functions.append((lines, f"{name}:{node.lineno} {node.name}"))

    with capsys.disabled():
        for title, sizes in (("files", files), ("functions", functions)):
            print(f"\nlongest of {len(sizes):,} {title}, in lines:")
            for lines, name in sorted(sizes, reverse=True)[:SHOWN]:
                print(f"{lines:6}  {name}")


def test_counts_of_modules_and_long_lines_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A report as well: few, deep modules, and lines that fit."""
    modules = {name: path for name, path in source_modules().items() if path.name != "__init__.py"}
    importers: Counter[str] = Counter()
    for name, path in modules.items():
        importers.update(set(_modules_imported(path, modules)) - {name})
    sizes = {name: len(path.read_text().splitlines()) for name, path in modules.items()}
    long = Counter(
        path.suffix
        for path in tracked("*.py", "*.sql")
        for line in path.read_text().splitlines()
        if len(line) > COLUMNS
    )

    with capsys.disabled():
        print(f"\n{len(modules):6}  modules")
        print(f"{sum(lines < SMALL_LINES for lines in sizes.values()):6}  under {SMALL_LINES} lines")
        print(f"{sum(importers[name] == 1 for name in modules):6}  imported by one other")
        print(f"{len(in_circles(import_graph())):6}  in circles")
        print(f"{long['.py']:6}  lines of Python over {COLUMNS} columns, tests and benchmarks included")
        print(f"{long['.sql']:6}  lines of SQL over {COLUMNS} columns")


def test_lines_of_sql_have_at_most_110_columns() -> None:
    """Ruff checks Python's."""
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.sql")
        if path.relative_to(ROOT).parts[0] in PACKAGES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > COLUMNS
    ]

    assert long == []


def imported(tree: ast.AST, modules: Collection[str]) -> Iterator[str]:
    """The modules that one imports as it is imported, or for its types alone; not those that its functions
    import.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & set(modules)
            yield from inner or {node.module} & set(modules)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node, modules)


def import_graph() -> dict[str, set[str]]:
    modules = source_modules()
    return {
        name: set(imported(ast.parse(path.read_text()), modules)) - {name} for name, path in modules.items()
    }


def in_circles(graph: Mapping[str, Set[str]]) -> Set[str]:
    """The modules that are left when those that import none, or that none imports, are taken away."""
    left = set(graph)
    while ends := {
        name for name in left if not graph[name] & left or not any(name in graph[other] for other in left)
    }:
        left -= ends
    return left


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter(import_graph()).prepare()  # raises CycleError, which names the circle


def test_modules_in_a_circle_are_counted() -> None:
    circle = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set[str](), "e": {"d"}}

    assert in_circles(circle) == {"b", "c"}


def _modules_imported(path: Path, modules: Collection[str]) -> Iterator[str]:
    """The modules that a file imports, in its functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported(ast.Module(body=[node], type_ignores=[]), modules)


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


AUDIT_TRAIL = "agent/security/audit/audit.py"
"""It has a logger of its own, because its lines have another form and are never left out."""


def test_all_modules_share_one_logger() -> None:
    logger = re.compile(r"^_?\w+ = logging\.getLogger\((.*)\)$", re.MULTILINE)

    found = {
        (name, where)
        for path in source_files()
        for name in logger.findall(path.read_text())
        if name != '"tidelog"'
        for where in (path.relative_to(ROOT).as_posix(),)
    }

    assert found == {('"tidelog.audit"', AUDIT_TRAIL)}


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
    """True for each that may write: `os.environ[...] = x`, `del`, or a call of one of its methods but `get`
    and `items`, and `os.putenv`.
    """
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
    folders = {
        path.relative_to(ROOT).parent.as_posix() for path in tracked("*.py", "*.sql", "infra/*", "docs/*")
    } - {"."}
    mirrors = {folder for folder in folders if folder.removeprefix("tests/") in folders - {folder}}

    unnamed = sorted(folder for folder in folders - mirrors if f"`{folder}/`" not in architecture)

    assert unnamed == []


_FILE = re.compile(r"`([\w./*-]+\.(?:py|sql|md))`")
_DECIDED = re.compile(r"`([\w./]+\.py)`: (`\w+`(?:, `\w+`)*)")


def test_the_map_names_files_that_exist_by_their_whole_path() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(_FILE.findall(text))

    assert len(named) > 90
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_the_map_names_functions_that_exist() -> None:
    found = _DECIDED.findall((ROOT / "ARCHITECTURE.md").read_text())

    missing = [
        f"{file}: {name}"
        for file, names in found
        for name in re.findall(r"\w+", names)
        if not re.search(rf"^ *(?:async def|def|class) {name}\b", (ROOT / file).read_text(), re.MULTILINE)
    ]

    assert len(found) > 5
    assert missing == []


def test_the_design_names_files_that_exist() -> None:
    """By their path in the repository or below tests/, by a pattern, or by their name alone."""
    names = {path.name for path in tracked("*.py", "*.sql", "*.md")}

    missing = [
        f"{page.name}: {name}"
        for page in tracked("docs/design/*.md")
        for name in _FILE.findall(page.read_text())
        if name not in names and not any(ROOT.glob(name)) and not (ROOT / "tests" / name).is_file()
    ]

    assert missing == []


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


def _names_imported(path: Path) -> Iterator[str]:
    """Modules of which the file imports something, in its functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def test_tests_and_benchmarks_share_tests_support_alone() -> None:
    """Except for tests/benchmarks, which tests the benchmarks themselves."""
    wrong = [
        f"{name} imports {module}"
        for path in tracked("tests/*.py", "benchmarks/*.py")
        if not (name := path.relative_to(ROOT).as_posix()).startswith("tests/benchmarks/")
        for module in _names_imported(path)
        if (name.startswith("tests/") and module.split(".")[0] == "benchmarks")
        or (name.startswith("benchmarks/") and module.startswith("tests") and "tests.support" not in module)
    ]

    assert wrong == []


ABOUT_MORE_THAN_THEIR_NAMESAKE = {
    "agent/kafka/apis/test_administration.py": "five APIs, in every version",
    "agent/kafka/apis/test_group_configs.py": "DescribeConfigs and IncrementalAlterConfigs of groups",
    "tidelog/backup/test_backup.py": "the whole of `tidelog backup`",
}


def test_a_test_is_in_the_folder_of_the_module_it_is_named_after() -> None:
    modules: dict[tuple[str, str], set[str]] = {}
    for path in source_files():
        where = path.relative_to(ROOT)
        modules.setdefault((where.parts[0], where.stem), set()).add(where.parent.as_posix())

    elsewhere = {
        where.as_posix()
        for path in tracked("tests/*/test_*.py")
        if (where := path.relative_to(ROOT / "tests")).parts[0] in PACKAGES
        and where.parent.as_posix()
        not in modules.get((where.parts[0], where.stem.removeprefix("test_")), {where.parent.as_posix()})
    }

    assert elsewhere == set(ABOUT_MORE_THAN_THEIR_NAMESAKE)


def test_agents_log_events_under_one_name() -> None:
    """An event has a constant text. What varies are its fields, in `extra`."""
    wrong = []
    for path in source_files():
        where = path.relative_to(ROOT)
        if where.parts[0] not in ("agent", "cache_ring", "compactor", "sequencer", "storage"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            on, name, arguments = ast.unparse(node.func.value), node.func.attr, node.args
            loggers = {"'tidelog'", *(["'tidelog.audit'"] if where.as_posix() == AUDIT_TRAIL else [])}
            is_logger = name == "getLogger" and not {ast.unparse(one) for one in arguments} <= loggers
            is_event = on == "log" and name in ("debug", "info", "warning", "error", "exception", "critical")
            if is_logger or (
                is_event and not (len(arguments) == 1 and isinstance(arguments[0], ast.Constant))
            ):
                wrong.append(f"{where}:{node.lineno} {ast.unparse(node.func)}")

    assert wrong == []
