"""`tidelog demo`: the whole path on real data."""

from typing import Annotated

import typer
from rich.console import Console

from tidelog.demo.run import run_demo

app = typer.Typer()


@app.command()
def demo(
    *,
    flights: Annotated[
        int | None, typer.Option(min=10_000, help="Only the first so many; by default all.", show_default=False)
    ] = None,
) -> None:
    """Start a stack, produce, consume and compare 336,776 flights, compact them with Spark, ask SQL, check, stop."""
    if not run_demo(Console(), flights):
        raise typer.Exit(1)
