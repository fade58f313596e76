"""Counts what tenants use at this agent, and adds it to their bill.

Promises:
- A request counts once, at the agent that its client came to.
- A report that was made counts once. If its outcome is not known, it is repeated under the same number.
- What an agent that dies has counted since its last report is not on the bill.
- At most `_MOST_TENANTS` tenants are counted between two reports.
"""

import asyncio
import contextlib
import logging
from datetime import UTC, date, datetime
from typing import Final
from uuid import uuid4

from agent.tenants.settings import TenantSettings
from agent.tenants.tenant_traffic import TenantTraffic
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.tenants.tenants import Tenants, Used

log = logging.getLogger("tidelog")

_MOST_TENANTS: Final = 10_000


class UsageMeter:
    def __init__(self, tenants: Tenants, settings: TenantSettings, traffic: TenantTraffic) -> None:
        """`traffic`: counts the same for the metrics."""
        self.traffic = traffic
        self._tenants = tenants
        self._settings = settings
        self._counts: dict[str, list[int]] = {}
        """Bytes in, bytes out and requests since the last report, by tenant."""
        self._reporter = uuid4()
        self._number = 0
        self._unsent: dict[tuple[date, str], Used] = {}
        """The report that is under way."""

    def note(self, tenant: str, bytes_in: int, bytes_out: int, requests: int) -> None:
        self.traffic.note(tenant, bytes_in, bytes_out, requests)
        counts = self._counts.get(tenant)
        if counts is None:
            if len(self._counts) >= _MOST_TENANTS:
                return
            counts = self._counts[tenant] = [0, 0, 0]
        counts[0] += bytes_in
        counts[1] += bytes_out
        counts[2] += requests

    async def run(self) -> None:
        """Reports and measures, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.tenant_usage_report_s)
            try:
                await self.report()
                while await self._tenants.measure(self._settings.tenant_usage_measure_s):
                    await self._tenants.forget_usage(self._settings.tenant_usage_days)
            except (SequencerUnavailable, CommitOutcomeUnknown) as error:
                log.warning("usage of tenants is reported later", extra={"error": str(error)})

    async def last_report(self) -> None:
        """Reports what was counted since the last time, before the agent ends."""
        with contextlib.suppress(SequencerUnavailable, CommitOutcomeUnknown):
            await self.report()

    async def report(self) -> None:
        """Raises SequencerUnavailable, CommitOutcomeUnknown: the next call repeats the report."""
        if not self._unsent:
            counts, self._counts = self._counts, {}
            today = datetime.now(UTC).date()
            self._unsent = {
                (today, tenant): Used(bytes_in=used[0], bytes_out=used[1], requests=used[2])
                for tenant, used in counts.items()
            }
            self._number += 1
        if self._unsent:
            await self._tenants.add_usage(self._reporter, self._number, self._unsent)
            self._unsent = {}
