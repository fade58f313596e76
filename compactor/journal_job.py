"""The jobs of the commit journal (`journal_writer.py`): entries every few seconds, checkpoints every few
minutes."""

from compactor.job import Step
from compactor.journal_writer import JournalWriter, Written
from compactor.settings import HousekeeperSettings

_LOOKS_PER_CHECKPOINT = 20


class JournalJob:
    """Writes what was committed since the last entry."""

    name = "journal"

    def __init__(self, writer: JournalWriter, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.journal_interval_s
        self._writer = writer

    async def step(self, progress: str | None) -> Step:
        written = await self._writer.write_entry()
        return Step(progress=progress, done=_done(written) | {"segments": written.segments})


class CheckpointJob:
    """Writes a checkpoint when one is due, then deletes old objects of the journal."""

    name = "checkpoint"

    def __init__(self, writer: JournalWriter, settings: HousekeeperSettings) -> None:
        self.interval_s = settings.checkpoint_interval_s / _LOOKS_PER_CHECKPOINT
        self._writer = writer

    async def step(self, progress: str | None) -> Step:
        written = await self._writer.write_checkpoint_if_due()
        removed = await self._writer.remove_old() if written.objects else 0
        return Step(progress=progress, done=_done(written) | {"removed": removed})


def _done(written: Written) -> dict[str, int]:
    return {"objects": written.objects, "bytes": written.size_bytes, "overtaken": written.overtaken}
