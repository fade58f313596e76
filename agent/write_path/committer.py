"""Sequencing of uploaded segments: one commit in flight, repeated while its outcome is unknown
(docs/design/write-path.md#commit).

Promises: a segment whose commit was sent is repeated with the same id until the sequencer says what became of it, and
none behind it is sent before; a refusal on the first attempt means not written, on a repeat unknown; a segment that was
refused is never committed again; what Postgres does not finish is repeated with half as many segments at once, and one
more with every success, so that no commit is for ever longer than a statement may take.
"""

import logging
import time
from collections.abc import Callable, Sequence

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.write_path.backoff import Backoff
from agent.write_path.last_outcomes import LastOutcomes
from agent.write_path.outcomes import WriteFailed, WriteFailure
from sequencer.commits.commits import Commits, Committed, Refused, SegmentToCommit
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from storage.identifiers import SegmentId

log = logging.getLogger("tidelog")


class Committer:
    def __init__(
        self, commits: Commits, settings: AgentSettings, metrics: Metrics, lost_because: Callable[[], str | None]
    ) -> None:
        """`lost_because` tells why nothing may be written now, if so."""
        self._commits = commits
        self._lost_because = lost_because
        self._settings = settings
        self._metrics = metrics
        self._at_once = settings.max_segments_per_commit
        self._sent: set[SegmentId] = set()
        """Segments whose outcome is not known yet."""
        self.outcomes = LastOutcomes("commits in the sequencer", settings.stalled_after_s)

    async def commit(self, segments: Sequence[SegmentToCommit]) -> list[Committed | WriteFailed]:
        """The outcomes of the first of these segments, at least one, in order: the rest has to be given again, before
        any other. Takes as long as the sequencer is away."""
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

    def _settled(self, segment: SegmentToCommit, answer: Committed | Refused) -> Committed | WriteFailed:
        sent_before = segment.segment_id in self._sent
        self._sent.discard(segment.segment_id)
        if isinstance(answer, Committed):
            return answer
        self._metrics.commit_refusals.labels(answer.reason).inc()
        log.warning("commit refused", extra={"reason": answer.reason, "outcome_known": not sent_before})
        if sent_before:
            return WriteFailed(
                failure=WriteFailure.UNKNOWN,
                message=f"the segment's reservation is {answer.reason}: an earlier commit may have been carried out",
            )
        return WriteFailed(
            failure=WriteFailure.NOT_WRITTEN,
            message=f"the segment's reservation is {answer.reason}: nothing was written",
        )
