"""From the environment to a running agent: the settings read and checked, then `run_agent`.

Promises that a setting which is wrong, missing or fits no other is a `UserError` that names its variable, before
anything starts. Apart from the command, so that `tidelog agent` without options, as containers say it, starts without
the command line's library.
"""

import logging
import os

from pydantic import ValidationError

from agent.groups.settings import GroupSettings
from agent.read_path.settings import ReadPathSettings
from agent.settings import AgentSettings
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from sequencer.settings import SequencerSettings
from storage.stores.object_store import StoreSettings, StoreUrl
from tidelog.errors import UserError
from tidelog.find_cluster import check_database_url
from tidelog.process.freed_memory import keep_freed_memory
from tidelog.process.logs import configure_logs
from tidelog.process.settings import ProcessSettings, variable_of
from tidelog.process.settings_fit import AllSettings, check_settings_fit
from tidelog.process.unknown_variables import unknown_variables

log = logging.getLogger("tidelog")
_MODELS = (
    AgentSettings, GroupSettings, ProcessSettings, StoreSettings, SequencerSettings, CacheRingSettings,
    ReadPathSettings, HousekeeperSettings,
)  # fmt: skip


def start_agent() -> None:
    """Returns when the agent has drained. Raises UserError."""
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
    keep_freed_memory()
    from tidelog.process.run_agent import (
        run_agent,  # seconds of imports, which help and a wrong setting need not wait for
    )

    configure_logs(process.log_format, process.log_level)
    for name, nearest in unknown_variables(os.environ, _MODELS).items():
        log.warning("no setting has this name", extra={"variable": name, "nearest": ", ".join(nearest)})
    run_agent(every, process)
