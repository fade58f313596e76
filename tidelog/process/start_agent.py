"""From the environment to a running agent: reads and checks the settings, then calls `run_agent`.

Promises:
- A setting that is wrong, missing or does not fit is a `UserError` that names its variable, before anything
  starts.
- Nothing reads a setting afterwards.

This module is separate from the command, so that `tidelog agent` without options, as in containers, starts
without importing the command line's library.

Freed memory is kept and used again, so that the kernel need not clear it for every object that goes
through.

What an agent reads and writes comes and goes in pieces of megabytes, from threads of several kinds. glibc's
malloc would give many of them back to the kernel and ask for fresh ones, cleared page by page: a third of the
CPU that a read from the store takes. Promises that at most `_KEPT_FREE_BYTES` at the heap's end are kept
unused, in one heap rather than one for each thread; between pieces in use more may lie, which is part of the
200 MiB that `memory_bound.py` allows beside the named settings.

`TIDELOG_*` variables that no part of Tidelog reads. Most likely a setting is misspelt, and its default would
be used in silence.

Promises to name no variable of another command, of the tests, or of a Kubernetes service called tidelog. An
agent that has no such variable pays nothing for this check.
"""

import ctypes
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Final

from storage.settings import Settings
from storage.stores.object_store import StoreUrl
from tidelog.errors import UserError
from tidelog.find_cluster import check_database_url
from tidelog.process.environment import Environment
from tidelog.process.logs import configure_logs
from tidelog.process.settings import ClientSettings, variable_of
from tidelog.process.settings_fit import AllSettings, check_settings_fit

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""The numbers of malloc.h."""
_FROM_HEAP_BYTES = 32 << 20
"""Larger pieces are still given back at once. This is the most that glibc allows."""
_KEPT_FREE_BYTES = 64 << 20


def keep_freed_memory() -> None:
    """Call it early: threads keep the heaps that they have. Does nothing if malloc is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _FROM_HEAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_FREE_BYTES)


_PREFIX: Final = variable_of("")
_NO_SETTINGS: Final = re.compile(r"TIDELOG_(AGENTS|ZONES|STORE|TEST_.*|(.*_)?SERVICE_(HOST|PORT).*)")
_SERVICE_LINK: Final = re.compile(r"(tcp|udp)://|TIDELOG_(.*_)?PORT_\d+_(TCP|UDP)")


def unknown_variables(
    environment: Mapping[str, str], models: Iterable[type[Settings]]
) -> Mapping[str, tuple[str, ...]]:
    """Variables that are no settings of `models` or of any command, each with a similar known name if there
    is one.
    """
    known = _variables((*models, ClientSettings))
    strange = [
        name for name, value in environment.items() if name.upper() not in known and _is_ours(name, value)
    ]
    if not strange:
        return {}
    from difflib import get_close_matches  # imported only if a variable is unknown

    from compactor.doctor import DoctorSettings
    from erasure.settings import ErasureSettings
    from recovery.settings import RecoverySettings
    from spark_source.settings import SourceSettings
    from tidelog.backup.settings import BackupSettings

    known |= _variables((DoctorSettings, ErasureSettings, SourceSettings, RecoverySettings, BackupSettings))
    likely = {name.removeprefix(_PREFIX): name for name in known}
    return {
        name: tuple(likely[one] for one in get_close_matches(name.upper().removeprefix(_PREFIX), likely, n=1))
        for name in strange
        if name.upper() not in known
    }


def _is_ours(name: str, value: str) -> bool:
    if not name.upper().startswith(_PREFIX) or _NO_SETTINGS.fullmatch(name.upper()):
        return False
    return not _SERVICE_LINK.match(value) and not _SERVICE_LINK.match(name.upper())


def _variables(models: Iterable[type[Settings]]) -> set[str]:
    return {variable_of(field) for model in models for field in model.model_fields}


log = logging.getLogger("tidelog")


def start_agent(environment: Environment) -> None:
    """Returns when the agent has drained. Raises UserError."""
    settings = AllSettings.read(environment)
    _check_addresses(settings)
    check_settings_fit(settings)
    keep_freed_memory()
    from tidelog.process.run_agent import (
        run_agent,  # imports take seconds; --help and a wrong setting need not wait for them
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
                f"{variable_of(name)} is not set.",
                "An agent needs a database and a store; `tidelog dev` brings both.",
            )
    check_database_url(database_url)
    try:
        StoreUrl.parse(store_url)
    except ValueError as invalid_url:
        raise UserError(f"{variable_of('store_url')}: {invalid_url}.") from None
