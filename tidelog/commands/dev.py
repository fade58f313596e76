"""`tidelog dev`: the embedded stack until Ctrl-C."""

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spark_compaction.java import JavaMissing, require_java
from tidelog.devstack.dev import run_dev
from tidelog.devstack.stack import StackSettings
from tidelog.errors import UserError
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class StoreKind(StrEnum):
    """`s3`: an S3 endpoint over a local directory. `local`: the directory itself."""

    S3 = "s3"
    LOCAL = "local"


@app.command()
@with_settings(ClientSettings, only=("data_dir",))
def dev(
    *,
    environment: Environment,
    agents: Annotated[int, typer.Option(min=1, max=64, help="How many agents.", envvar="TIDELOG_AGENTS")] = 2,
    zones: Annotated[
        str,
        typer.Option(
            help="Zones, separated by commas. Agents are spread over them in turn.", envvar="TIDELOG_ZONES"
        ),
    ] = "a,b",
    kafka_port: Annotated[
        int,
        typer.Option(
            min=0, max=65000, help="Agent i listens on this + i; 0: free ones.", envvar="TIDELOG_KAFKA_PORT"
        ),
    ] = 9092,
    http_port: Annotated[
        int,
        typer.Option(
            min=0, max=65000, help="Agent i listens on this + i; 0: free ones.", envvar="TIDELOG_HTTP_PORT"
        ),
    ] = 8080,
    store: Annotated[
        StoreKind, typer.Option(help="An S3 endpoint, or a plain directory.", envvar="TIDELOG_STORE")
    ] = StoreKind.S3,
    history: Annotated[
        bool,
        typer.Option(
            "--history", help="Also keep the topics' tables fresh. Needs Java and tidelog[history]."
        ),
    ] = False,
) -> None:
    """Run Postgres, S3 and agents until Ctrl-C. Data stays in the data directory. An agent that dies is
    restarted.
    """
    named = tuple(zone.strip() for zone in zones.split(",") if zone.strip())
    if not named:
        raise UserError("--zones names no zone.", "For example: --zones a,b")
    if history:
        _require_spark()
    settings = StackSettings(
        environment=environment,
        data_dir=Path(environment.read(ClientSettings).data_dir),
        agents=agents,
        zones=named,
        kafka_port=kafka_port,
        http_port=http_port,
        store=store.value,
        history=history,
    )
    run_dev(settings, Console())


def _require_spark() -> None:
    if find_spec("pyspark") is None:
        raise UserError("--history needs Spark, which is not installed.", "pip install 'tidelog[history]'")
    try:
        require_java()
    except JavaMissing as missing:
        raise UserError(str(missing)) from None
