"""The new protocol and the conversions as transcripts: one file per claim, in `transcripts/consumer`."""

from pathlib import Path

import pytest

from tests.agent.groups.consumer.consumer_transcript import ConsumerPlayer
from tests.agent.groups.transcript import assert_plays

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.transcript"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_group_of_the_new_protocol_answers_as_its_transcript_says(path: Path) -> None:
    assert_plays(path, ConsumerPlayer)
