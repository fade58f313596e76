"""The classic protocol as transcripts: one file per claim, in `transcripts/classic`."""

from pathlib import Path

import pytest

from tests.agent.groups.transcript import assert_plays

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.transcript"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_classic_group_answers_as_its_transcript_says(path: Path) -> None:
    assert_plays(path)
