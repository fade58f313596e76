"""One module per command of `tidelog`; each has a `typer.Typer` called `app`."""
