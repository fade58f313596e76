"""Configs of consumer groups, as an administrator set them (KIP-848). The agent knows the names and values.

Promises: a change is one step. A group has configs whether it exists or not, as in Kafka.
"""

from collections.abc import Collection, Mapping, Sequence

from psycopg.types.json import Jsonb

from sequencer.database.array_parameters import TextArray
from sequencer.database.database import Database
from sequencer.database.named_sql import load_statements
from sequencer.groups.groups import GROUPS_PER_PAGE, can_be_id, refuse_impossible_id

SQL = load_statements("group_configs")


class GroupConfigs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, group_ids: Collection[str]) -> dict[str, Mapping[str, str]]:
        """Returns the configs of those groups that have any set."""
        possible = TextArray(group_id for group_id in group_ids if can_be_id(group_id))
        rows = await self._database.read(SQL["configs_of"], group_ids=possible)
        return {row.group_id: row.config for row in rows}

    async def alter(self, group_id: str, set: Mapping[str, str], remove: Collection[str] = ()) -> None:
        """Sets some configs and returns others to their defaults. Raises InvalidId, and CommitOutcomeUnknown
        if it may be done.
        """
        refuse_impossible_id(group_id)
        trimmed = {name: value.strip() for name, value in set.items()}
        await self._database.write(SQL["alter"], group_id=group_id, set=Jsonb(trimmed), remove=list(remove))

    async def list(self) -> Sequence[str]:
        """Returns the groups with any config set, by id."""
        found: list[str] = []
        page = GROUPS_PER_PAGE
        while page == GROUPS_PER_PAGE:
            after = found[-1] if found else ""
            rows = await self._database.read(SQL["list"], after=after, cap=GROUPS_PER_PAGE)
            found += [row.group_id for row in rows]
            page = len(rows)
        return found
