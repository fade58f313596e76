"""`tidelog demo`: the whole path on real data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_settings()
def demo(
    *,
    environment: Environment,
    flights: Annotated[
        int | None,
        typer.Option(
            min=10_000, help="Only this many flights, from the first. By default all.", show_default=False
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Write the last screen into this file, as SVG.", show_default=False
        ),
    ] = None,
) -> None:
    """Start a stack, produce, consume and compare 336,776 flights, compact them with Spark, ask SQL, check,
    stop.
    """
    console = Console()
    console.print("Loading Tidelog, Spark and Arrow ...")
    # The imports take seconds: show something before.
    from tidelog.demo.run import run_demo

    if not run_demo(console, environment, flights, picture):
        raise typer.Exit(1)
