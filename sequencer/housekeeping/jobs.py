"""Jobs: recurring work of the cluster. One housekeeper at a time does each job; all can see the age of its
last success.

Promises:
- A job is claimed by one holder at a time, as long as its lease lasts. A dead holder's job is taken over.
- A bounded pass over many rows continues where it stopped, with any holder.

A claim saves work, but the log does not depend on it: every job is safe to run twice at once. So nothing here
waits for a synchronous standby.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements

SQL = load_statements("jobs")

LONGEST_ERROR = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run the job `name` until the lease ends. `progress` is where the last pass stopped, None
    at its beginning.
    """

    name: str
    holder: UUID
    progress: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    name: str
    running: bool
    success_age_s: float | None
    """Seconds since its last success, by the database's clock; None if it never succeeded."""
    last_error: str | None


class Jobs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(
        self, name: str, holder: UUID, *, lease_s: float, min_interval_s: float = 0.0
    ) -> Claim | None:
        """None while another holds it, if it was started less than `min_interval_s` ago, or while the bucket
        is another database's (`sequencer/cluster/ownership.py`).
        """
        rows = await self._database.run_local(
            SQL["claim"], name=name, holder=holder, lease_s=lease_s, min_interval_s=min_interval_s
        )
        return Claim(name=name, holder=holder, progress=rows[0].progress) if rows else None

    async def renew(self, claim: Claim, *, lease_s: float, progress: str | None) -> bool:
        """Prolongs the lease and records the progress. False: the claim has ended, stop."""
        rows = await self._database.run_local(
            SQL["renew"], name=claim.name, holder=claim.holder, lease_s=lease_s, progress=progress
        )
        return bool(rows)

    async def succeed(self, claim: Claim, *, progress: str | None) -> None:
        """Ends the claim. `progress` None: the pass is complete, and the next one starts at the beginning."""
        await self._database.run_local(
            SQL["succeed"], name=claim.name, holder=claim.holder, progress=progress
        )

    async def fail(self, claim: Claim, error: str) -> None:
        """Ends the claim and keeps the reason for `statuses`. The pass continues from its last renewal."""
        await self._database.run_local(
            SQL["fail"], name=claim.name, holder=claim.holder, error=error[:LONGEST_ERROR]
        )

    async def statuses(self) -> Sequence[JobStatus]:
        """Returns every job that was ever claimed, by name."""
        return [
            JobStatus(
                name=row.name, running=row.running, success_age_s=row.success_age_s, last_error=row.last_error
            )
            for row in await self._database.run_local(SQL["statuses"])
        ]
