"""Which transactional id a producer id belongs to, as this agent knows it. Produce asks: commits find a
transaction by its producer id alone, and a client may write only in transactions of ids that it may use.

A producer id belongs to one transactional id for ever: it is drawn for it, and none is drawn twice. When the
transactional id is forgotten or has used up its epochs, its producer gets a new producer id. So what is known
here never becomes wrong.

Promises:
- A producer id without a transactional id is not remembered: it may get one in the next moment.
- The cache holds at most `most_known` producer ids.
- One statement answers concurrent lookups (`agent/shared_lookups.py`).
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from agent.settings import AgentSettings
from agent.shared_lookups import SharedLookups
from sequencer.commits.transactions import Transactions
from sequencer.database.fair_queue import Asker
from storage.identifiers import ProducerId

_MOST_KNOWN: Final = 20_000
"""A transactional id has up to 1,000 bytes."""


class TransactionalIds:
    def __init__(
        self, transactions: Transactions, settings: AgentSettings, most_known: int = _MOST_KNOWN
    ) -> None:
        self._transactions = transactions
        self._most_known = most_known
        self._known: OrderedDict[ProducerId, str] = OrderedDict()
        self._forgettings = 0
        """Counts what was forgotten. A lookup that was sent before may be older than that."""
        self._lookups: SharedLookups[ProducerId, str] = SharedLookups(
            self._ask, most_keys=settings.shared_lookup_keys, most_waiting=settings.shared_lookups_waiting
        )

    def __len__(self) -> int:
        return len(self._known)

    @property
    def statements(self) -> int:
        """How many lookups there were."""
        return self._lookups.statements

    def used_share(self, asker: Asker) -> float:
        """Returns how much of its fair part of the lookup queue this asker uses. 1.0 is all of it."""
        return self._lookups.used_share(asker)

    def known(self, producer_id: ProducerId) -> str | None:
        """Returns the transactional id if it need not be looked up."""
        found = self._known.get(producer_id)
        if found is not None:
            self._known.move_to_end(producer_id)
        return found

    async def of(self, producer_ids: Collection[ProducerId]) -> dict[ProducerId, str]:
        """Returns the transactional ids of those that have one. Raises SequencerUnavailable."""
        found = {number: known for number in producer_ids if (known := self.known(number)) is not None}
        missing = [number for number in producer_ids if number not in found]
        return found | await self._lookups.get(missing) if missing else found

    def note(self, producer_id: ProducerId, transactional_id: str) -> None:
        """The producer id was just given out for this transactional id."""
        self._known[producer_id] = transactional_id
        self._known.move_to_end(producer_id)
        if len(self._known) > self._most_known:
            self._known.popitem(last=False)

    def forget_all(self) -> None:
        """Another Postgres became the primary: it may not know what the last one gave out."""
        self._forgettings += 1
        self._known.clear()

    async def _ask(self, producer_ids: list[ProducerId]) -> dict[ProducerId, str]:
        forgettings = self._forgettings
        found = await self._transactions.ids_of(producer_ids)
        if forgettings == self._forgettings:
            for producer_id, transactional_id in found.items():
                self.note(producer_id, transactional_id)
        return found
