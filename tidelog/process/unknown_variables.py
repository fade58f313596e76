"""`TIDELOG_*` variables that no part of Tidelog reads: most likely a setting misspelt, which would be its default in
silence.

Promises to name no variable of another command, of the tests, or that Kubernetes makes for a service called tidelog;
and that an agent whose variables are all its own pays nothing for the look.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from storage.settings import Settings
from tidelog.process.settings import ClientSettings, variable_of

_PREFIX: Final = variable_of("")
_NO_SETTINGS: Final = re.compile(r"TIDELOG_(AGENTS|ZONES|STORE|TEST_.*|(.*_)?SERVICE_(HOST|PORT).*)")
_SERVICE_LINK: Final = re.compile(r"(tcp|udp)://|TIDELOG_(.*_)?PORT_\d+_(TCP|UDP)")


def unknown_variables(
    environment: Mapping[str, str], models: Iterable[type[Settings]]
) -> Mapping[str, tuple[str, ...]]:
    """Variables that are no settings, neither of `models` nor of any command, with at most one known name like each."""
    known = _variables((*models, ClientSettings))
    strange = [name for name, value in environment.items() if name.upper() not in known and _is_ours(name, value)]
    if not strange:
        return {}
    from difflib import get_close_matches  # all this is for who has one, and costs an agent's start nothing

    from compactor.doctor import DoctorSettings
    from recovery.settings import RecoverySettings
    from spark_compaction.settings import CompactionSettings
    from tidelog.backup.settings import BackupSettings

    known |= _variables((DoctorSettings, CompactionSettings, RecoverySettings, BackupSettings))
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
