"""Looks up the aborted transactions of the batches that a fetch reads, where there are too many to be listed
with the coordinates (docs/design/transactions.md#reading-committed-data).

Promises:
- A fetch looks up `MOST_BATCHES` batches at most, by one statement, whatever other producers have aborted.
  Its answer ends behind them.
- What is found belongs to the runs that were read: if one of them was swapped meanwhile, the fetch reads
  again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from agent.read_path.load_runs import Loaded
from agent.read_path.read_decisions import Decision, FetchPlan, Take
from agent.read_path.slice_batches import transactional_batches
from sequencer.commits.coordinates import TransactionalBatches
from storage.arrow.aborted_batches import AbortedTransaction

MOST_BATCHES: Final = 2_000
"""Of transactions. Postgres looks up so many in some milliseconds."""

Ask: TypeAlias = Callable[
    [Sequence[TransactionalBatches]], Awaitable[list[tuple[AbortedTransaction, ...] | None]]
]


class LookedUp(NamedTuple):
    """The aborted transactions that hold batches below `end_offset`. None: the runs have changed."""

    end_offset: int
    aborted: tuple[AbortedTransaction, ...] | None


async def look_up_aborted(
    plan: FetchPlan, decisions: Sequence[Decision], loaded: Mapping[int, Loaded], ask: Ask
) -> dict[int, LookedUp]:
    """For the places of the fetch whose aborted transactions are not listed.

    Raises SequencerUnavailable or CommitOutcomeUnknown."""
    found: dict[int, LookedUp] = {}
    asked: dict[int, TransactionalBatches] = {}
    room = MOST_BATCHES
    for place, part in loaded.items():
        decision, partition = decisions[place], plan.partitions[place]
        if not plan.read_committed or not isinstance(decision, Take) or decision.view.aborted is not None:
            continue
        batches, end_offset = transactional_batches(
            part.runs,
            partition.offset,
            decision.end_offset,
            min(partition.max_bytes, plan.max_bytes),
            room,
        )
        found[place] = LookedUp(end_offset, ())
        if batches is not None:
            asked[place] = batches
            room -= len(batches.base_offsets)
    if asked:
        answers = await ask(list(asked.values()))
        for place, aborted in zip(asked, answers, strict=True):
            found[place] = LookedUp(found[place].end_offset, aborted)
    return found
