"""Renews the ownership of the bucket (`sequencer/cluster/ownership.py`). Only this job proves that this
database's log is the one that the bucket holds.
"""

import logging

from compactor.job import Step
from compactor.settings import HousekeeperSettings
from sequencer.client import Sequencer
from sequencer.cluster.ownership import Confirmed, Watching
from sequencer.cluster.ownership_rules import Lost
from storage.stores.object_store import ObjectStore

log = logging.getLogger("tidelog")


class OwnershipJob:
    """Costs two GETs and one PUT per pause and cluster."""

    name = "ownership"

    def __init__(self, sequencer: Sequencer, store: ObjectStore, cluster: str, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.ownership_ratchet_s
        self._ownership = sequencer.ownership
        self._store = store
        self._cluster = cluster
        self._was_watching = False

    async def step(self, progress: str | None) -> Step:
        found = await self._ownership.ratchet(self._store, self._cluster, ratchet_s=self.interval_s)
        if isinstance(found, Lost):
            log.error("this database does not own the bucket: no jobs run", extra={"reason": found.because})
        elif isinstance(found, Watching) and not self._was_watching:
            log.info("Postgres was started: the bucket is watched first", extra={"left_s": round(found.left_s)})
        self._was_watching = isinstance(found, Watching)
        return Step(progress=progress, done={"ratchets": int(found == Confirmed())})
