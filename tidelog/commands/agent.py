"""`tidelog agent`: one agent in the foreground. What a container runs."""

import typer

from agent.groups.settings import GroupSettings
from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from sequencer.settings import SequencerSettings
from storage.object_store import StoreSettings
from tidelog.setting_options import with_settings
from tidelog.settings import ProcessSettings
from tidelog.start_agent import start_agent

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_settings(
    AgentSettings,
    ProcessSettings,
    StoreSettings,
    SequencerSettings,
    CacheRingSettings,
    ReadPathSettings,
    GroupSettings,
    HousekeeperSettings,
)
def agent() -> None:
    """Run one agent until SIGTERM or SIGINT, which drain it. Every option is also a variable, named in brackets."""
    start_agent()
