"""For the races of groups: commits and changes with open transactions, and wrong variants of the functions:
without their locks, or with lock and work in one statement.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection

from sequencer.client import Sequencer
from sequencer.groups.committed_offsets import SQL, CommitVerdict, OffsetCommit, commit_parameters
from sequencer.groups.groups import SQL as GROUPS_SQL
from sequencer.groups.groups import write_parameters
from storage.identifiers import NodeId
from tests.sequencer.groups.groups import BOB, a_change, a_member

Connection = AsyncConnection[Any]

UNLOCKED = "commit_offsets_unlocked"
IN_ONE_STATEMENT = "commit_offsets_in_one_statement"
_LOCK = "    PERFORM 1 FROM groups WHERE group_id = ANY (group_ids) ORDER BY group_id FOR NO KEY UPDATE;\n"
_HELD = "WHERE g.group_id = given.group_id OFFSET 0"


async def commit_within(
    connection: Connection, commits: Sequence[OffsetCommit], function: str = "commit_offsets"
) -> list[CommitVerdict]:
    """Commits offsets in this connection's transaction, which stays open."""
    statement = SQL["commit"].replace("commit_offsets", function)
    cursor = await connection.execute(statement, commit_parameters(commits))
    row = await cursor.fetchone()
    assert row is not None
    return [CommitVerdict(verdict) for verdict in row.verdicts]


async def claim_within(connection: Connection, group_id: str, agent: NodeId = BOB) -> int:
    cursor = await connection.execute(
        GROUPS_SQL["claim"], {"group_id": group_id, "node_id": agent, "create": True}
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row.coordinator_epoch)


async def write_within(connection: Connection, group_id: str, epoch: int, **change: Any) -> bool:
    parameters = write_parameters(group_id, epoch, a_change(**change))
    row = await (await connection.execute(GROUPS_SQL["write"], parameters)).fetchone()
    assert row is not None
    return bool(row.held)


async def delete_within(connection: Connection, group_id: str, epoch: int) -> str:
    parameters = {"group_id": group_id, "coordinator_epoch": epoch}
    row = await (await connection.execute(GROUPS_SQL["delete"], parameters)).fetchone()
    assert row is not None
    return str(row.outcome)


async def create_commit_without_lock(sequencer: Sequencer) -> None:
    await _create_variant(sequencer, UNLOCKED, {_LOCK: ""})


async def create_commit_in_one_statement(sequencer: Sequencer) -> None:
    """It takes its locks in the statement that does the work."""
    await _create_variant(sequencer, IN_ONE_STATEMENT, {_LOCK: "", _HELD: f"{_HELD} FOR NO KEY UPDATE"})


async def _create_variant(sequencer: Sequencer, name: str, changes: dict[str, str]) -> None:
    async with sequencer.database.connection() as connection:
        cursor = await connection.execute("SELECT pg_get_functiondef('commit_offsets'::regproc) AS source")
        row = await cursor.fetchone()
        assert row is not None
        source = row.source
        for found, changed in {"commit_offsets": name, **changes}.items():
            assert found in source, f"{found} is no longer in the commit"
            source = source.replace(found, changed)
        await connection.execute(source.encode(), prepare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fencing:
    """What takes the right to commit from the member ann (epoch 1) of generation 1, and the answer to its
    commits then.
    """

    name: str
    by: Callable[[Connection, int], Awaitable[object]]
    """In a transaction, given the group's coordinator epoch; the group is `g`."""
    verdict: CommitVerdict
    is_in_the_groups_row: bool
    """Otherwise it is in its members' rows, which no transaction locks."""


FENCINGS = (
    Fencing(
        name="claimed by another agent",
        by=lambda connection, _: claim_within(connection, "g"),
        verdict=CommitVerdict.NOT_COORDINATOR,
        is_in_the_groups_row=True,
    ),
    Fencing(
        name="generation raised",
        by=lambda connection, epoch: write_within(connection, "g", epoch, generation=2),
        verdict=CommitVerdict.ILLEGAL_GENERATION,
        is_in_the_groups_row=True,
    ),
    Fencing(
        name="member removed",
        by=lambda connection, epoch: write_within(connection, "g", epoch, members={"ann": None}),
        verdict=CommitVerdict.UNKNOWN_MEMBER,
        is_in_the_groups_row=False,
    ),
    Fencing(
        name="member at its next epoch",
        by=lambda connection, epoch: write_within(connection, "g", epoch, members={"ann": a_member(2)}),
        verdict=CommitVerdict.STALE_MEMBER_EPOCH,
        is_in_the_groups_row=False,
    ),
)
