"""A job, as the housekeeper sees it: a name, a pause, and steps of bounded size."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of a step. `progress` is where the next step continues; None: a new pass begins. `more`:
    continue at once.
    """

    progress: str | None = None
    more: bool = False
    done: Mapping[str, int] = field(default_factory=dict)
    """Counts by kind, for the metrics."""


class Job(Protocol):
    """Safe to run twice at once, and to be stopped between any two statements."""

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float: ...

    async def step(self, progress: str | None) -> Step:
        """Does a bounded piece of work. Raises SequencerUnavailable, CommitOutcomeUnknown or
        StoreUnavailable."""
