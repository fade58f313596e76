"""From the environment to a running agent: the settings read and checked, then `run_agent`.

Promises that a setting which is wrong, missing or fits no other is a `UserError` that names its variable, before
anything starts, and that nothing reads a setting afterwards. Apart from the command, so that `tidelog agent` without
options, as containers say it, starts without the command line's library.
"""

import logging
from dataclasses import fields

from storage.stores.object_store import StoreUrl
from tidelog.errors import UserError
from tidelog.find_cluster import check_database_url
from tidelog.process.environment import Environment
from tidelog.process.freed_memory import keep_freed_memory
from tidelog.process.logs import configure_logs
from tidelog.process.settings import variable_of
from tidelog.process.settings_fit import AllSettings, check_settings_fit
from tidelog.process.unknown_variables import unknown_variables

log = logging.getLogger(__name__)


def start_agent(environment: Environment) -> None:
    """Returns when the agent has drained. Raises UserError."""
    settings = AllSettings.read(environment)
    _check_addresses(settings)
    check_settings_fit(settings)
    keep_freed_memory()
    from tidelog.process.run_agent import (
        run_agent,  # seconds of imports, which help and a wrong setting need not wait for
    )

    configure_logs(settings.process.log_format, settings.process.log_level)
    models = [type(getattr(settings, part.name)) for part in fields(settings)]
    for name, nearest in unknown_variables(environment.variables, models).items():
        log.warning("no setting has this name", extra={"variable": name, "nearest": ", ".join(nearest)})
    run_agent(settings)


def _check_addresses(settings: AllSettings) -> None:
    database_url, store_url = settings.agent.database_url.get_secret_value(), settings.agent.store_url
    for name, value in (("database_url", database_url), ("store_url", store_url)):
        if not value:
            raise UserError(
                f"{variable_of(name)} is not set.", "An agent needs a database and a store; `tidelog dev` brings both."
            )
    check_database_url(database_url)
    try:
        StoreUrl.parse(store_url)
    except ValueError as invalid_url:
        raise UserError(f"{variable_of('store_url')}: {invalid_url}.") from None
