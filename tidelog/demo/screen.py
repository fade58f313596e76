"""What the demonstration shows: its steps while it runs, and one screen at its end."""

import io
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

_STEPS = 6
_PICTURE_COLUMNS: Final = 108
_FETCHED_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # rich's own, from another host


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCheck:
    """A claim that was tested. `detail` says how."""

    name: str
    passed: bool
    detail: str


@dataclass(slots=True)
class DemoStep:
    """The text of a running step. `detail` is shown when the step is done."""

    progress: Progress
    detail: str = ""
    task: int = 0

    def advance_to(self, done: int) -> None:
        """Moves the bar."""
        self.progress.update(self.progress.task_ids[self.task], completed=done)

    def say(self, text: str) -> None:
        """Replaces the step's description while it runs. Without a terminal, prints a line."""
        if self.progress.disable:
            self.progress.console.print(f"[dim]…[/]     {text}", soft_wrap=True)
        self.progress.update(self.progress.task_ids[self.task], description=text)


@dataclass(slots=True)
class Screen:
    """Prints a line per step. Also works without a terminal, as in a log of CI."""

    console: Console
    checks: list[DemoCheck] = field(default_factory=list)
    _lasting: list[RenderableType] = field(default_factory=list)

    @contextmanager
    def step(self, number: int, title: str, total: int | None = None) -> Iterator[DemoStep]:
        """Shows a bar while the step runs, and then a line with its result."""
        began = time.monotonic()
        label = f"[bold]{number}/{_STEPS}[/] {title}"
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        is_live = self.console.is_terminal
        if not is_live:
            self.console.print(f"[dim]…[/] {label}", soft_wrap=True)
        with Progress(*columns, console=self.console, transient=True, disable=not is_live) as progress:
            progress.add_task(label, total=total)
            running = DemoStep(progress)
            yield running
        took = f"[dim]({time.monotonic() - began:.1f} s)[/]"
        self._print_lasting(f"[green]✓[/] {label}: {running.detail} {took}")

    def check(self, name: str, passed: bool, detail: str) -> None:
        """Records a check. A failed check is also printed at once."""
        self.checks.append(DemoCheck(name=name, passed=passed, detail=detail))
        if not passed:
            self._print_lasting(f"[bold red]✗ {name}[/]: {detail}")

    @property
    def all_passed(self) -> bool:
        """True if there were checks and none failed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def show_result(
        self,
        figures: Mapping[str, str],
        answer: Mapping[str, float],
        expected: Mapping[str, float],
        seconds: float,
    ) -> None:
        """The one screen."""
        top = Table.grid(padding=(0, 4))
        top.add_row(_figures(figures), _answer(answer, expected))
        verdict = (
            Text(f"All {len(self.checks)} checks passed", style="bold green")
            if self.all_passed
            else Text(f"{sum(not check.passed for check in self.checks)} checks FAILED", style="bold red")
        )
        title = Text.assemble(verdict, f" in {seconds:.0f} s")
        style = "green" if self.all_passed else "red"
        self._print_lasting(
            Panel(Group(top, _checks(self.checks)), title=title, border_style=style, expand=False)
        )

    def save_picture(self, file: Path) -> None:
        """Write the last screen as an SVG file: what was printed, without the moving bars."""
        console = Console(
            record=True,
            file=io.StringIO(),
            width=_PICTURE_COLUMNS,
            force_terminal=True,
            color_system="truecolor",
        )
        for renderable in self._lasting:
            console.print(renderable)
        file.write_text(_FETCHED_FONT.sub("", console.export_svg(title="tidelog demo", unique_id="demo")))

    def _print_lasting(self, renderable: RenderableType) -> None:
        self._lasting.append(renderable)
        self.console.print(renderable, soft_wrap=isinstance(renderable, str))


def _figures(figures: Mapping[str, str]) -> Table:
    table = Table(title="the log", header_style="bold cyan", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in figures.items():
        table.add_row(name, value)
    return table


def _answer(answer: Mapping[str, float], expected: Mapping[str, float]) -> Table:
    table = Table(
        "carrier", "Spark SQL", "source", title="mean arrival delay (minutes)", header_style="bold cyan"
    )
    table.columns[1].justify = table.columns[2].justify = "right"
    for carrier in sorted(expected, key=lambda name: expected[name]):
        found = answer.get(carrier)
        table.add_row(carrier, "-" if found is None else f"{found:.3f}", f"{expected[carrier]:.3f}")
    return table


def _checks(checks: list[DemoCheck]) -> Table:
    table = Table(title="checks", header_style="bold cyan", show_header=False)
    for check in checks:
        mark = "[green]✓[/]" if check.passed else "[bold red]✗[/]"
        table.add_row(mark, check.name, check.detail)
    return table
