"""Common rules of transactional requests: which ids Postgres can keep, and who asks."""

from typing import Final, Literal, Protocol

from sequencer.commits.transactions import ProducerOfTransactions
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from storage.identifiers import ProducerId

AWAY: Final = (SequencerUnavailable, CommitOutcomeUnknown)
"""Why a step cannot be answered now. The client asks again, and the repeat returns what the first one did."""

_LONGEST_ID_BYTES: Final = 1000
"""An index entry of Postgres holds 2,700 bytes."""


class NamesProducer(Protocol):
    @property
    def transactional_id(self) -> str: ...

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...


def can_be_transactional_id(transactional_id: str | None) -> bool:
    return (
        transactional_id is not None
        and "\0" not in transactional_id
        and 0 < len(transactional_id.encode()) <= _LONGEST_ID_BYTES
    )


def state_of(last_end: Literal["commit", "abort"] | None, *, is_open: bool) -> str:
    """Returns the state in Kafka's spelling. There are none in between: a transaction ends at once."""
    if is_open:
        return "Ongoing"
    return "Empty" if last_end is None else {"commit": "CompleteCommit", "abort": "CompleteAbort"}[last_end]


def producer_of(request: NamesProducer) -> ProducerOfTransactions:
    return ProducerOfTransactions(
        transactional_id=request.transactional_id,
        producer_id=ProducerId(request.producer_id),
        producer_epoch=request.producer_epoch,
    )
