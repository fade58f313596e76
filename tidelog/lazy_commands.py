"""Commands that are imported when they are run, so that `tidelog --help` answers at once.

The list of commands needs a name and a line of help for each; the module behind a command (Spark, pandas, a Kafka
client) is imported only by the invocation that needs it.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer.core
import typer.main


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`module` has a `typer.Typer` called `app`: one command, or a group of them."""

    name: str
    module: str
    help: str


class LazyCommand(typer.core.TyperCommand):
    """Stands for a command in the list; the real one makes the context that runs it."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(name=entry.name, help=entry.help, rich_markup_mode=None)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        command = typer.main.get_command(import_module(self._entry.module).app)
        command.name = self._entry.name
        is_completing = extra.get("resilient_parsing", False)
        if not args and command.no_args_is_help and not is_completing:
            args = ["--help"]  # what the framework would raise instead is not printed for a command within this list
        return command.make_context(info_name, args, parent=parent, **extra)


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are the class's `entries`, in that order."""

    entries: tuple[Entry, ...] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for entry in self.entries:
            self.add_command(LazyCommand(entry))
