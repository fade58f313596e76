"""Whether Postgres keeps what it acknowledges: its settings, and the sign of a wait for a standby that was
cut short (docs/design/ownership.md#durability). Pure.
"""

from dataclasses import dataclass
from typing import Final

DURABLE_SYNCHRONOUS_COMMIT: Final = ("on", "remote_apply")

REFUSED_AS_WEAK: Final = "TLD01"
"""The error code of the function `demand_durability` for weak settings."""
REFUSED_AS_LOST: Final = "TLD02"
"""Its error code in a database that does not own the bucket, or is being recovered."""

WAIT_FOR_STANDBY: Final = "SyncRepWaitForLSN"
"""The function in Postgres' source that waits for a synchronous standby. It warns when its wait is cancelled:
the transaction is then committed here and perhaps nowhere else. The name is the same in every language of the
server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """As a session of Postgres sees its settings."""

    synchronous_commit: str
    synchronous_standby_names: str

    @property
    def has_standbys(self) -> bool:
        return bool(self.synchronous_standby_names.strip())

    def complaints(self, *, standbys_expected: bool) -> tuple[str, ...]:
        """Why nothing may be acknowledged; empty when it may."""
        found = []
        if self.synchronous_commit not in DURABLE_SYNCHRONOUS_COMMIT:
            found.append(
                f"synchronous_commit is {self.synchronous_commit}: an acknowledged record could be lost; "
                "set it to on"
            )
        if standbys_expected and not self.has_standbys:
            found.append(
                "synchronous_standby_names is empty although standbys are expected:"
                " a failover would lose acknowledged records"
            )
        return tuple(found)
