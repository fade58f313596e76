"""JSON for programs, on standard output."""

import json
from typing import Any

import typer


def print_json(value: Any) -> None:
    """Indented, one value."""
    typer.echo(json.dumps(value, indent=2))
