"""The one client of the sequencer: a facade per concern, and which connections each of them uses."""

from typing import Self

from sequencer.cluster.agents import Agents
from sequencer.cluster.cluster import Cluster
from sequencer.cluster.ownership import Ownership
from sequencer.cluster.store_identity import StoreIdentity
from sequencer.commits.commits import Commits, Reservations
from sequencer.commits.coordinates import Coordinates
from sequencer.commits.producers import Producers
from sequencer.commits.sinks import Sinks
from sequencer.commits.transactions import Transactions
from sequencer.database.database import Database
from sequencer.database.lanes import Lane
from sequencer.groups.committed_offsets import CommittedOffsets
from sequencer.groups.group_retention import GroupRetention
from sequencer.groups.groups import GroupConfigs, Groups
from sequencer.history.history import History
from sequencer.history.history_log import HistoryLog
from sequencer.housekeeping.cleanings import Cleanings
from sequencer.housekeeping.erasures import Erasures
from sequencer.housekeeping.garbage import Garbage
from sequencer.housekeeping.holds import Holds
from sequencer.housekeeping.inspection import Inspection
from sequencer.housekeeping.jobs import Jobs
from sequencer.housekeeping.merges import Merges
from sequencer.housekeeping.observations import Observations
from sequencer.housekeeping.retention import Retention
from sequencer.journal.journal import Journal
from sequencer.journal.recovery import GoneRanges
from sequencer.security.acls import AclChanges, Acls
from sequencer.security.credentials import UserCredentials
from sequencer.security.quotas import ClientQuotas, QuotaUse
from sequencer.settings import SequencerSettings
from sequencer.tenants.tenants import Tenants
from sequencer.topics.topic_keys import TopicKeyRows
from sequencer.topics.topics import Administration, Topics

__all__ = ["Sequencer", "SequencerSettings"]


class Sequencer:
    """Open it, use its facades, close it. It also opens while Postgres is away: calls raise
    SequencerUnavailable until Postgres is back.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.topics = Topics(database)
        self.topic_keys = TopicKeyRows(database)
        self.coordinates = Coordinates(database)
        self.producers = Producers(database)
        self.transactions = Transactions(database)
        self.sinks = Sinks(database, self.transactions)
        self.administration = Administration(database)
        self.groups = Groups(database)
        self.group_configs = GroupConfigs(database)
        self.committed_offsets = CommittedOffsets(database)
        self.user_credentials = UserCredentials(database)
        self.acls = Acls(database)
        self.client_quotas = ClientQuotas(database)
        leases = database.on(Lane.LEASES)
        self.acl_changes = AclChanges(leases)
        self.quota_use = QuotaUse(leases)
        self.tenants = Tenants(leases)
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
        self.history_log = HistoryLog(housekeeping)
        self.retention = Retention(housekeeping)
        self.inspection = Inspection(housekeeping)
        self.holds = Holds(housekeeping)
        self.garbage = Garbage(housekeeping)
        self.gone_ranges = GoneRanges(housekeeping)
        self.merges = Merges(housekeeping)
        self.cleanings = Cleanings(housekeeping)
        self.erasures = Erasures(housekeeping)
        self.journal = Journal(housekeeping)
        self.observations = Observations(housekeeping)

    @classmethod
    async def open(cls, database_url: str, settings: SequencerSettings) -> Self:
        database = Database(database_url, settings)
        await database.open()
        return cls(database)

    async def close(self) -> None:
        await self.database.close()
