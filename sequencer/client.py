"""The one client through which everybody talks to the sequencer: a pool of connections and one facade per concern."""

from typing import Self

from sequencer.administration import Administration
from sequencer.agents import Agents
from sequencer.cluster import Cluster
from sequencer.commits import Commits
from sequencer.committed_offsets import CommittedOffsets
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
        self.cluster = Cluster(database)
        self.store_identity = StoreIdentity(database)
        self.ownership = Ownership(database)
        self.topics = Topics(database)
        self.reservations = Reservations(database)
        self.commits = Commits(database)
        self.coordinates = Coordinates(database)
        self.producers = Producers(database)
        self.administration = Administration(database)
        self.groups = Groups(database)
        self.group_configs = GroupConfigs(database)
        self.committed_offsets = CommittedOffsets(database)
        self.group_retention = GroupRetention(database)
        self.agents = Agents(database)
        self.history = History(database)
        self.retention = Retention(database)
        self.jobs = Jobs(database)
        self.inspection = Inspection(database)
        self.holds = Holds(database)
        self.garbage = Garbage(database)
        self.gone_ranges = GoneRanges(database)
        self.merges = Merges(database)
        self.journal = Journal(database)

    @classmethod
    async def open(cls, database_url: str, settings: SequencerSettings | None = None) -> Self:
        database = Database(database_url, settings)
        await database.open()
        return cls(database)

    async def close(self) -> None:
        await self.database.close()
