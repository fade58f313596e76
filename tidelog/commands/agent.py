"""`tidelog agent`: one agent in the foreground. What a container runs."""

import typer
from pydantic import ValidationError

from agent.groups.settings import GroupSettings
from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from sequencer.settings import SequencerSettings
from storage.object_store import StoreSettings, StoreUrl
from tidelog.errors import UserError
from tidelog.find_cluster import check_database_url
from tidelog.logs import configure_logs
from tidelog.setting_options import variable_of, with_settings
from tidelog.settings import ProcessSettings
from tidelog.settings_fit import AllSettings, check_settings_fit

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
    try:
        settings, process = AgentSettings(), ProcessSettings()
        GroupSettings()
        every = AllSettings(
            agent=settings,
            store=StoreSettings(),
            sequencer=SequencerSettings(),
            ring=CacheRingSettings(),
            read_path=ReadPathSettings(),
            housekeeper=HousekeeperSettings(),
        )
    except ValidationError as invalid:
        first = invalid.errors()[0]
        name = variable_of(str(first["loc"][0])) if first["loc"] else "The settings"
        raise UserError(f"{name}: {first['msg']}.", "`tidelog agent --help` lists every setting.") from None
    for name, value in (("database_url", settings.database_url.get_secret_value()), ("store_url", settings.store_url)):
        if not value:
            raise UserError(
                f"{variable_of(name)} is not set.", "An agent needs a database and a store; `tidelog dev` brings both."
            )
    check_settings_fit(every)
    check_database_url(settings.database_url.get_secret_value())
    try:
        StoreUrl.parse(settings.store_url)
    except ValueError as invalid_url:
        raise UserError(f"{variable_of('store_url')}: {invalid_url}.") from None
    from tidelog.run_agent import run_agent  # seconds of imports, which help and a wrong setting need not wait for

    configure_logs(process.log_format, process.log_level)
    run_agent(every, process)
