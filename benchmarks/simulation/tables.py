"""A table for the terminal and for a page. A page has it between two markers, so that a run can renew it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Rows of text under columns; `name` is the marker's."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_table(self) -> Table:
        table = Table(*self.columns, title=self.title, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        for column in table.columns[1:]:
            column.justify = "right"
        return table

    def as_markdown(self) -> str:
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def renew(page: Path, tables: Iterable[Figures]) -> None:
    """Raises ValueError for a table that the page has no place for."""
    text = page.read_text()
    for table in tables:
        place = re.compile(rf"(<!-- table {table.name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"{page} has no place for the table {table.name}")
        text = place.sub(partial(_filled, table.as_markdown()), text)
    page.write_text(text)


def _filled(markdown: str, place: re.Match[str]) -> str:
    return f"{place[1]}{markdown}\n{place[2]}"
