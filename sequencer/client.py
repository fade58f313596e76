"""The one client of the sequencer: a facade per concern, and which connections each of them uses."""

from typing import Self

from sequencer.administration import Administration
from sequencer.agents import Agents
from sequencer.cluster import Cluster
from sequencer.commits import Commits
from sequencer.committed_offsets import CommittedOffsets
from sequencer.connections import Lane
from sequencer.coordinates import Coordinates
from sequencer.database import Database
from sequencer.garbage import Garbage
from sequencer.group_configs import GroupConfigs
from sequencer.group_retention import GroupRetention
from sequencer.groups import Groups
from sequencer.history import History
from sequencer.holds import Holds
from sequencer.inspection import Inspection
from sequencer.jobs import Jobs
from sequencer.journal import Journal
from sequencer.merges import Merges
from sequencer.observations import Observations
from sequencer.ownership import Ownership
from sequencer.producers import Producers
from sequencer.recovery import GoneRanges
from sequencer.reservations import Reservations
from sequencer.retention import Retention
from sequencer.settings import SequencerSettings
from sequencer.store_identity import StoreIdentity
from sequencer.topics import Topics

__all__ = ["Sequencer", "SequencerSettings"]


class Sequencer:
    """Open it, use its facades, close it. It opens also while Postgres is away: calls raise SequencerUnavailable until
    it is back.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.topics = Topics(database)
        self.coordinates = Coordinates(database)
        self.producers = Producers(database)
        self.administration = Administration(database)
        self.groups = Groups(database)
        self.group_configs = GroupConfigs(database)
        self.committed_offsets = CommittedOffsets(database)
        leases = database.on(Lane.LEASES)
        self.agents = Agents(leases)
        self.reservations = Reservations(leases)
        self.commits = Commits(leases)
        self.jobs = Jobs(leases)
        self.cluster = Cluster(leases)
        housekeeping = database.on(Lane.HOUSEKEEPING)
        self.store_identity = StoreIdentity(housekeeping)
        self.ownership = Ownership(housekeeping)
        self.group_retention = GroupRetention(housekeeping)
        self.history = History(housekeeping)
        self.retention = Retention(housekeeping)
        self.inspection = Inspection(housekeeping)
        self.holds = Holds(housekeeping)
        self.garbage = Garbage(housekeeping)
        self.gone_ranges = GoneRanges(housekeeping)
        self.merges = Merges(housekeeping)
        self.journal = Journal(housekeeping)
        self.observations = Observations(housekeeping)

    @classmethod
    async def open(cls, database_url: str, settings: SequencerSettings | None = None) -> Self:
        database = Database(database_url, settings)
        await database.open()
        return cls(database)

    async def close(self) -> None:
        await self.database.close()
