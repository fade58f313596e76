"""A plan that changes is seen, and the functions' plans are the same whatever the tables held when they were
made.
"""

import difflib

import pytest

from sequencer.client import Sequencer
from tests.sequencer.transcripts import FUNCTIONS, PLANS, fill, transcripts

AGAIN = "If this is intended, write the plans again: python -m tests.sequencer.transcripts"


@pytest.mark.superuser
async def test_the_plans_of_hot_statements_are_those_written_down(sequencer: Sequencer) -> None:
    while_empty = await transcripts(sequencer)
    await fill(sequencer)
    found = await transcripts(sequencer)

    written = {path.stem: path.read_text() for path in PLANS.glob("*.txt")}
    assert found.keys() == written.keys()
    differences = [
        line
        for name in found
        for line in difflib.unified_diff(
            written[name].splitlines(), found[name].splitlines(), f"{name}.txt", "as planned now", lineterm=""
        )
    ]
    assert not differences, "\n".join([*differences, AGAIN])
    for function in FUNCTIONS:
        assert while_empty[function] == found[function], (
            f"{function} was planned otherwise while the tables were empty"
        )
