"""What a job is to the housekeeper: a name, a pause, and steps of bounded size."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step did. `progress` is where the next one goes on, None at the beginning of a new pass; `more`: go on
    at once.
    """

    progress: str | None = None
    more: bool = False
    done: Mapping[str, int] = field(default_factory=dict)
    """How much of what, for the metrics."""


class Job(Protocol):
    """Safe to run twice at once and to be stopped between any two statements."""

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float: ...

    async def step(self, progress: str | None) -> Step:
        """Does a bounded piece of work; raises SequencerUnavailable, CommitOutcomeUnknown or StoreUnavailable."""
