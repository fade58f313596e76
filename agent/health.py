"""Whether an agent should get traffic: what `/ready` asks (docs/design/failure-rules.md#start-and-stop)."""

from collections.abc import Callable

from agent.http.readiness import Check, NotReady
from agent.settings import AgentSettings
from agent.write_path.write_path import WritePath
from cache_ring.ring.membership import Membership
from sequencer.client import Sequencer
from sequencer.cluster.store_identity import WrongStore
from sequencer.database.database import SequencerUnavailable
from storage.stores.object_store import ObjectStore


class Health:
    """The checks. Each raises with a message that a person can act on."""

    def __init__(
        self,
        sequencer: Callable[[], Sequencer | None],
        store: Callable[[], ObjectStore | None],
        membership: Callable[[], Membership | None],
        write_path: Callable[[], WritePath | None],
        settings: AgentSettings,
    ) -> None:
        self._sequencer = sequencer
        self._store = store
        self._membership = membership
        self._write_path = write_path
        self._settings = settings

    def checks(self, is_started: Callable[[], bool], takes_requests: Callable[[], bool]) -> tuple[Check, ...]:
        async def serving() -> None:
            membership = self._membership()
            if membership is None or not is_started():
                raise NotReady("the agent is starting")
            if membership.lost_because is not None:
                raise NotReady("the agent does not serve while the bucket is not its database's")
            if not membership.is_serving():
                raise NotReady("the agent's lease in the ring could not be renewed; is the database there?")
            if not takes_requests():
                raise NotReady("the agent is about to take requests again")

        return (
            Check(name="store", run=self.check_store),
            Check(name="database", run=self.check_database, why_late=self._why_unreachable),
            Check(name="store identity", run=self.check_store_identity, why_late=self._why_unreachable),
            Check(name="ownership", run=self.check_ownership, why_late=self._why_unreachable),
            Check(name="writes", run=self.check_writes),
            Check(name="agent", run=serving),
        )

    def _why_unreachable(self) -> SequencerUnavailable | None:
        sequencer = self._sequencer()
        return None if sequencer is None else sequencer.database.unreachable()

    async def check_store(self) -> None:
        """Raises StoreUnavailable, NotReady."""
        store = self._store()
        if store is None:
            raise NotReady("the object store was not opened yet")
        await store.probe()

    async def check_writes(self) -> None:
        """Raises NotReady with what the store or the database itself said, if the last uploads or commits failed."""
        write_path = self._write_path()
        complaint = None if write_path is None else write_path.complaint()
        if complaint is not None:
            raise NotReady(complaint)

    async def check_store_identity(self) -> None:
        """Raises NotReady where store and database do not belong together, StoreUnavailable, SequencerUnavailable. Once
        they were found to, no other database is asked anything (`Database.keep_to`)."""
        sequencer, store = self._sequencer(), self._store()
        if sequencer is None or store is None:
            raise NotReady("the object store and the database are to be reached first")
        if sequencer.database.is_kept_to_one:
            return
        try:
            await sequencer.store_identity.check(store, self._settings.cluster, self._settings.store_url)
        except WrongStore as wrong:
            raise NotReady(str(wrong)) from wrong

    async def check_ownership(self) -> None:
        """Raises NotReady where another database owns the bucket, SequencerUnavailable."""
        sequencer = self._sequencer()
        if sequencer is None:
            raise NotReady("the database is to be reached first")
        because = (await sequencer.ownership.state()).lost_because
        if because is not None:
            raise NotReady(because)

    async def check_database(self) -> None:
        """Raises SequencerUnavailable, NotReady when what Postgres acknowledges could be lost."""
        sequencer = self._sequencer()
        if sequencer is None:
            raise SequencerUnavailable("the database was not opened yet")
        complaints = (await sequencer.cluster.health()).complaints()
        if complaints:
            raise NotReady("; ".join(complaints))
