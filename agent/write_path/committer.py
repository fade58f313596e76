"""Sequences uploaded segments: one commit in flight, repeated while its outcome is unknown
(docs/design/write-path.md#commit).

Promises:
- A commit that was sent is repeated with the same segment ids until the sequencer gives its outcome. None
  behind it is sent before.
- A refusal of the first attempt means not written, of a repeat unknown.
- A refused segment is never committed again.
- If Postgres does not finish a commit, it is repeated with half as many segments, and one more after every
  success. So it fits the timeout of a statement again.

`SequenceGaps` decides how long a batch that came before its predecessor is sent back to be tried again
(docs/design/write-path.md#sequence-gaps).
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.write_path.backoff import Backoff
from agent.write_path.outcomes import LastOutcomes, WriteFailed, WriteFailure
from sequencer.commits.commits import Commits, Committed, SegmentRefused, SegmentToCommit
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from storage.identifiers import Partition, ProducerId, SegmentId, TopicId

ProducerPlace: TypeAlias = tuple[TopicId, Partition, ProducerId, int]
"""A producer of an epoch in a partition: these have one sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gap:
    first_seen_s: float
    last_seen_s: float


class SequenceGaps:
    """The gaps in producers' sequences that this agent has seen recently.

    A producer's partition moves to another agent while up to five of its batches are still under way through
    the first one. Or one of several batches in flight failed to upload. The next batches are then out of
    order, through no fault of the producer. After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka gives up, or begins
    a new epoch while the missing batch may still be written. After a retriable error each client sends its
    batches again, in order, until the missing one is there.

    Pure: time is a parameter, in monotonic seconds.

    Promises:
    - A gap is accepted for `patience_s` from its first sight, and no longer unless the producer makes
      progress in between.
    - At most `max_gaps` are remembered.
    """

    def __init__(self, patience_s: float, max_gaps: int) -> None:
        self._patience_s = patience_s
        self._max_gaps = max_gaps
        self._gaps: OrderedDict[ProducerPlace, _Gap] = OrderedDict()

    def accepts(self, place: ProducerPlace, now_s: float) -> bool:
        """Returns True if the producer of a batch that was out of order should try again. A producer that was
        silent for the whole patience has gone on elsewhere meanwhile: its gap is a new one.
        """
        known = self._gaps.pop(place, None)
        is_new = known is None or now_s - known.last_seen_s > self._patience_s
        gap = _Gap(first_seen_s=now_s if known is None or is_new else known.first_seen_s, last_seen_s=now_s)
        self._gaps[place] = gap
        if len(self._gaps) > self._max_gaps:
            self._gaps.popitem(last=False)
        return now_s - gap.first_seen_s < self._patience_s

    def closed(self, place: ProducerPlace) -> None:
        """Notes that a batch of the producer was written."""
        self._gaps.pop(place, None)

    def __len__(self) -> int:
        return len(self._gaps)


log = logging.getLogger("tidelog")


class Committer:
    def __init__(
        self,
        commits: Commits,
        settings: AgentSettings,
        metrics: Metrics,
        lost_because: Callable[[], str | None],
    ) -> None:
        """`lost_because` returns why nothing may be written now, or None."""
        self._commits = commits
        self._lost_because = lost_because
        self._settings = settings
        self._metrics = metrics
        self._at_once = settings.max_segments_per_commit
        self._sent: set[SegmentId] = set()
        """Segments whose outcome is not known yet."""
        self.outcomes = LastOutcomes("commits in the sequencer", settings.stalled_after_s)

    async def commit(self, segments: Sequence[SegmentToCommit]) -> list[Committed | WriteFailed]:
        """Returns the outcomes of the first of these segments, at least one, in order. Give the rest again
        before any other. Takes as long as the sequencer is away.
        """
        self.outcomes.began(time.monotonic())
        try:
            return await self._commit(segments)
        finally:
            self.outcomes.ended()

    async def _commit(self, segments: Sequence[SegmentToCommit]) -> list[Committed | WriteFailed]:
        started_s = time.monotonic()
        backoff = Backoff(self._settings.commit_backoff_s)
        while True:
            some = segments[: self._at_once]
            because = self._lost_because()
            if because is not None and not any(segment.segment_id in self._sent for segment in some):
                return [WriteFailed(failure=WriteFailure.NOT_WRITTEN, message=because) for _ in some]
            try:
                answers = await self._commits.commit(some)
            except SequencerUnavailable as error:
                self._repeat("unavailable", error)
            except CommitOutcomeUnknown as error:
                self._repeat("unknown", error)
                self._sent.update(segment.segment_id for segment in some)
                self._at_once = max(1, len(some) // 2)
            else:
                self._at_once = min(self._at_once + 1, self._settings.max_segments_per_commit)
                self._metrics.commits.inc()
                now_s = time.monotonic()
                self.outcomes.succeeded(now_s)
                self._metrics.commit_seconds.observe(now_s - started_s)
                return [self._settled(segment, answer) for segment, answer in zip(some, answers, strict=True)]
            await backoff.wait()

    def _repeat(self, reason: str, error: Exception) -> None:
        self._metrics.commit_repeats.labels(reason).inc()
        self.outcomes.failed(str(error), time.monotonic())
        log.warning("commit is repeated", extra={"reason": reason, "error": str(error)})

    def _settled(
        self, segment: SegmentToCommit, answer: Committed | SegmentRefused
    ) -> Committed | WriteFailed:
        sent_before = segment.segment_id in self._sent
        self._sent.discard(segment.segment_id)
        if isinstance(answer, Committed):
            return answer
        self._metrics.commit_refusals.labels(answer.reason).inc()
        log.warning("commit refused", extra={"reason": answer.reason, "outcome_known": not sent_before})
        if sent_before:
            return WriteFailed(
                failure=WriteFailure.UNKNOWN,
                message=(
                    f"the segment's reservation is {answer.reason}: an earlier commit may have been "
                    "carried out"
                ),
            )
        return WriteFailed(
            failure=WriteFailure.NOT_WRITTEN,
            message=f"the segment's reservation is {answer.reason}: nothing was written",
        )
