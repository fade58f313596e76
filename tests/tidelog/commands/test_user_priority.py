"""`tidelog users priority` marks a user's traffic."""

import asyncio

from typer.testing import CliRunner

from sequencer.client import Sequencer, SequencerSettings
from sequencer.security.quotas import Entity, Quotas
from tidelog.cli import app


async def priorities(database_url: str) -> dict[Entity, Quotas]:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    try:
        return await sequencer.client_quotas.all()
    finally:
        await sequencer.close()


def test_a_mark_is_set_changed_and_removed(database_url: str) -> None:
    entity = frozenset({("user", "nightly")})
    for mark, expected in (
        ("bulk", {entity: {"tidelog_priority": 2.0}}),
        ("interactive", {entity: {"tidelog_priority": 1.0}}),
        ("normal", {}),
    ):
        done = CliRunner().invoke(
            app,
            ["users", "priority", "nightly", mark, "--database-url", database_url],
            catch_exceptions=False,
        )

        assert done.exit_code == 0, done.output
        assert asyncio.run(priorities(database_url)) == expected

    wrong = CliRunner().invoke(app, ["users", "priority", "nightly", "soon", "--database-url", database_url])
    assert wrong.exit_code != 0
