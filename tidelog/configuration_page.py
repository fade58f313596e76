"""`docs/configuration.md`: every setting with its variable, default and meaning, written from the settings
classes (`make docs`). A test compares the two.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agent.groups.settings import GroupSettings
from agent.quotas.settings import QuotaSettings
from agent.read_path.settings import ReadPathSettings
from agent.security.acls.settings import AuthorizationSettings
from agent.security.audit.settings import AuditSettings
from agent.security.listener_settings import ListenerSettings
from agent.security.sasl.settings import SaslSettings
from agent.settings import AgentSettings
from agent.tenants.settings import TenantSettings
from cache_ring.settings import CacheRingSettings
from compactor.doctor import DoctorSettings
from compactor.settings import HousekeeperSettings
from erasure.settings import ErasureSettings
from recovery.settings import RecoverySettings
from sequencer.settings import MigrationSettings, SequencerSettings
from spark_compaction.settings import CompactionSettings
from spark_source.settings import SourceSettings
from storage.encryption.settings import EncryptionSettings
from storage.settings import Settings, described
from storage.stores.object_store import StoreSettings
from tidelog.backup.settings import BackupSettings
from tidelog.process.settings import ClientSettings, ProcessSettings, variable_of
from tidelog.sql.settings import SqlSettings

PAGE: Final = Path(__file__).parents[1] / "docs" / "configuration.md"
PARTS: Final[tuple[tuple[str, type[Settings]], ...]] = (
    ("Where things are", ClientSettings),
    ("The process", ProcessSettings),
    ("The agent", AgentSettings),
    ("Listeners and TLS", ListenerSettings),
    ("Reads", ReadPathSettings),
    ("Consumer groups", GroupSettings),
    ("Authorization", AuthorizationSettings),
    ("Client quotas", QuotaSettings),
    ("Logins", SaslSettings),
    ("The audit trail", AuditSettings),
    ("Tenants", TenantSettings),
    ("Agents among themselves", CacheRingSettings),
    ("The object store", StoreSettings),
    ("Encryption of topics", EncryptionSettings),
    ("Postgres", SequencerSettings),
    ("Migrations", MigrationSettings),
    ("Housekeeping", HousekeeperSettings),
    ("The doctor", DoctorSettings),
    ("Compaction into Parquet", CompactionSettings),
    ("SQL", SqlSettings),
    ("Erasure", ErasureSettings),
    ("Spark's data source", SourceSettings),
    ("Recovery", RecoverySettings),
    ("Backups", BackupSettings),
)
_INTRODUCTION: Final = """# Configuration

Every setting is an environment variable, and an option of the commands that use it:
`TIDELOG_LINGER_MS` is `--linger-ms`. The option is used if it is given, else the variable, else the
default. `make docs` writes this page from the code. [operate.md](operate.md) says which settings
you need first.
"""


def document() -> str:
    """The whole page."""
    lines = [_INTRODUCTION]
    shown: set[str] = set()
    for title, model in PARTS:
        rows = list(_rows(model, shown))
        if rows:
            lines += [f"## {title}", "", "| variable | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _rows(model: type[Settings], shown: set[str]) -> Iterable[str]:
    """One for each setting that no part before has shown."""
    texts = described(model)
    for name, field in model.model_fields.items():
        if name not in shown:
            shown.add(name)
            text = texts.get(name, "").replace("|", "\\|")
            yield f"| `{variable_of(name)}` | {_default(field)} | {text}{_choices(field.annotation)} |"


def _default(field: FieldInfo) -> str:
    if field.default in (None, PydanticUndefined, ""):
        return ""
    if isinstance(field.default, SecretStr):
        return "(secret)"
    value = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    return f"`{value}`"


def _choices(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is not Literal:
        return ""
    return f" One of {', '.join(f'`{choice}`' for choice in get_args(annotation))}."


if __name__ == "__main__":
    PAGE.write_text(document())
    sys.stdout.write(f"{PAGE.name} has {document().count('| `TIDELOG_')} settings\n")
