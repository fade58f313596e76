"""Sequencing of uploaded segments: one commit in flight, repeated while its outcome is unknown (DESIGN §4, §5).

Promises: a segment whose commit was sent is repeated with the same id until the sequencer says what became of it; a
refusal on the first attempt means not written, on a repeat unknown; a segment that was refused is never committed
again.
"""

import logging
import time
from collections.abc import Sequence

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.write_path.backoff import Backoff
from agent.write_path.outcomes import WriteFailed, WriteFailure
from sequencer.commits import Commits, Committed, Refused, SegmentToCommit
from sequencer.database import CommitOutcomeUnknown, SequencerUnavailable

log = logging.getLogger(__name__)


class Committer:
    def __init__(self, commits: Commits, settings: AgentSettings, metrics: Metrics) -> None:
        self._commits = commits
        self._settings = settings
        self._metrics = metrics

    async def commit(self, segments: Sequence[SegmentToCommit]) -> list[Committed | WriteFailed]:
        """The outcome of each segment, in order. Takes as long as the sequencer is away."""
        started_s = time.monotonic()
        backoff = Backoff(self._settings.commit_backoff_s)
        sent_before = False
        while True:
            try:
                answers = await self._commits.commit(segments)
            except SequencerUnavailable as error:
                self._repeat("unavailable", error)
            except CommitOutcomeUnknown as error:
                self._repeat("unknown", error)
                sent_before = True
            else:
                self._metrics.commits.inc()
                self._metrics.commit_seconds.observe(time.monotonic() - started_s)
                return [self._settled(answer, sent_before) for answer in answers]
            await backoff.wait()

    def _repeat(self, reason: str, error: Exception) -> None:
        self._metrics.commit_repeats.labels(reason).inc()
        log.warning("commit is repeated", extra={"reason": reason, "error": str(error)})

    def _settled(self, answer: Committed | Refused, sent_before: bool) -> Committed | WriteFailed:
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
