"""`tidelog peers`: the secret by which agents know each other."""

import asyncio

import typer
from rich.console import Console

from sequencer.client import Sequencer, SequencerSettings
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from tidelog.audit import audited
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Renew the secret by which agents know each other.",
)


@app.callback()
def peers() -> None:
    """Makes `tidelog peers` a group, although it has one command."""


@app.command("renew-secret")
@with_settings(ClientSettings, only=("database_url", "data_dir"))
def renew_secret(environment: Environment) -> None:
    """Make a new secret for the agents' peer port. The old one stays valid until the next renewal."""
    found = find_cluster(environment)
    database_url, settings = (
        require(found.read(ClientSettings), "database_url"),
        found.read(SequencerSettings),
    )
    with audited(environment, "tidelog peers renew-secret", "PEER_SECRET", ""):
        try:
            asyncio.run(_renew(database_url, settings))
        except SequencerUnavailable as away:
            raise UserError(" ".join(str(away).split())) from None
        except CommitOutcomeUnknown:
            raise UserError(
                "The connection was lost; the secret may be renewed.", "Run the command again."
            ) from None
    Console().print(
        "[green]Renewed.[/] Agents use the new secret within seconds. The old one is still valid: if "
        "it has leaked, run this again after a minute."
    )


async def _renew(database_url: str, settings: SequencerSettings) -> None:
    sequencer = await Sequencer.open(database_url, settings)
    try:
        await sequencer.agents.renew_peer_secret()
    finally:
        await sequencer.close()
