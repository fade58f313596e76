"""Credentials of users: what proves that a client knows a user's password, without the password
(docs/security.md#users).

A row has what SCRAM needs (RFC 5802): salt, iterations, StoredKey and ServerKey. Who reads a row can try
passwords against it, and can pose as the server to that user. The row does not let in.

Promises:
- All changes of a call take effect at once. If one change of a user is refused, no change of that user is
  made.
- Each change has a number. Who asks with the last number that it knows learns of every later change, also of
  deletions.
- A credential appears in no `repr`.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sequencer.database.array_parameters import BytesArray, Int4Array, TextArray
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.tenants.tenant_limits import MOST_USERS, TenantLimitReached
from sequencer.tenants.tenant_names import behind, tenant_of

SQL = load_statements("credentials")

LONGEST_NAME_BYTES = 255
"""The most bytes of a user's name in UTF-8."""
LONGEST_SALT_BYTES = 1_024
PER_PAGE = 1_000
"""The most rows per statement of a listing."""
CHANGES_KEPT = 10_000
"""Deletions are remembered for this many later changes (functions/alter_credentials.sql)."""


class ScramMechanism(StrEnum):
    """The names are SASL's."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


class InvalidUserName(Exception):
    """No user can have this name."""


@dataclass(frozen=True, slots=True)
class CredentialKey:
    user: str
    mechanism: ScramMechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramKeys:
    """RFC 5802 names them: StoredKey is the hash of ClientKey, ServerKey signs the server's answer."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    key: CredentialKey
    keys: ScramKeys
    change: int
    """The number of the change that set it. It names this version of the credential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMark:
    """The last change that an asker knows."""

    number: int
    key: CredentialKey | None = None
    """One call may change many credentials under one number. None: all of them are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialNews:
    mark: ChangeMark
    changed: Sequence[CredentialKey]
    deleted: Sequence[CredentialKey]
    """Those of `changed` that are gone."""
    is_complete: bool
    """False: deletions before these may have been forgotten already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCredential:
    key: CredentialKey
    iterations: int


class UserCredentials:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, users: Collection[str]) -> dict[str, tuple[Credential, ...]]:
        """Returns the credentials of those users that have any."""
        possible = TextArray(user for user in users if can_be_user(user))
        found: dict[str, tuple[Credential, ...]] = {}
        for row in await self._database.read(SQL["credentials_of"], users=possible):
            found[row.user_name] = (*found.get(row.user_name, ()), _credential(row))
        return found

    async def decoy_key(self) -> bytes:
        """Returns the secret from which the answers about unknown users are made."""
        [row] = await self._database.read(SQL["decoy_key"])
        return bytes(row.decoy_key)

    async def newest(self) -> ChangeMark:
        [row] = await self._database.read(SQL["newest"])
        return ChangeMark(number=row.credential_changes)

    async def changes_after(self, mark: ChangeMark) -> CredentialNews:
        """Returns at most `PER_PAGE` changes after the mark, in order."""
        key = mark.key
        rows = await self._database.read(
            SQL["changes_after"],
            number=mark.number if key is not None else mark.number + 1,
            user="" if key is None else key.user,
            mechanism="" if key is None else key.mechanism,
            cap=PER_PAGE,
        )
        changed = [_key(row) for row in rows]
        return CredentialNews(
            mark=ChangeMark(number=rows[-1].change, key=changed[-1]) if rows else mark,
            changed=changed,
            deleted=[key for key, row in zip(changed, rows, strict=True) if row.is_deleted],
            is_complete=not rows or rows[0].newest - mark.number <= CHANGES_KEPT,
        )

    async def alter(
        self,
        upserted: Iterable[tuple[CredentialKey, ScramKeys]],
        deleted: Iterable[CredentialKey] = (),
        *,
        users_must_exist: bool | None = None,
    ) -> frozenset[str]:
        """Returns the users that were refused: a credential to delete is not there, or the user of one to set
        exists or does not exist against `users_must_exist`. Names no credential twice.

        Raises InvalidUserName, TenantLimitReached, and CommitOutcomeUnknown if it may be done.
        """
        upserted, deleted = list(upserted), list(deleted)
        for key in (*(key for key, _ in upserted), *deleted):
            check_user(key.user)
        tenants = {key.user: tenant for key, _ in upserted if (tenant := tenant_of(key.user)) is not None}
        rows = await self._database.write(
            SQL["alter"],
            users=TextArray(key.user for key, _ in upserted),
            mechanisms=TextArray(key.mechanism for key, _ in upserted),
            salts=BytesArray(keys.salt for _, keys in upserted),
            iterations=Int4Array(keys.iterations for _, keys in upserted),
            stored_keys=BytesArray(keys.stored_key for _, keys in upserted),
            server_keys=BytesArray(keys.server_key for _, keys in upserted),
            deleted_users=TextArray(key.user for key in deleted),
            deleted_mechanisms=TextArray(key.mechanism for key in deleted),
            users_of_tenants=TextArray(tenants),
            of_tenants=TextArray(tenants.values()),
            most_of_tenant=MOST_USERS,
            users_must_exist=users_must_exist,
        )
        if any(row.refused_user is None for row in rows):
            raise TenantLimitReached("There are as many users as this tenant may have.")
        return frozenset(row.refused_user for row in rows)

    async def list(self, within: str = "") -> list[ListedCredential]:
        """Returns all credentials, by user and mechanism. `within`: only of users whose names begin with a
        tenant's prefix. A long list is not from one moment.
        """
        found: list[ListedCredential] = []
        first, order = (within, {"behind": behind(within)}) if within else ("", {})
        page = PER_PAGE
        while page == PER_PAGE:
            after = found[-1].key if found else None
            rows = await self._database.read(
                SQL["list_within" if within else "list"],
                user=first if after is None else after.user,
                mechanism="" if after is None else after.mechanism,
                cap=PER_PAGE,
                **order,
            )
            found += [ListedCredential(key=_key(row), iterations=row.iterations) for row in rows]
            page = len(rows)
        return found


def can_be_user(name: str) -> bool:
    """True if a user can have this name: 1 to 255 bytes of UTF-8, none of them NUL."""
    try:
        return 0 < len(name.encode()) <= LONGEST_NAME_BYTES and "\0" not in name
    except UnicodeEncodeError:
        return False


def check_user(name: str) -> None:
    """Raises InvalidUserName."""
    if not can_be_user(name):
        raise InvalidUserName(f"a user's name is 1 to {LONGEST_NAME_BYTES} bytes, none of them NUL")


def _key(row: Row) -> CredentialKey:
    return CredentialKey(row.user_name, ScramMechanism(row.mechanism))


def _credential(row: Row) -> Credential:
    return Credential(
        key=_key(row),
        keys=ScramKeys(
            salt=bytes(row.salt),
            iterations=row.iterations,
            stored_key=bytes(row.stored_key),
            server_key=bytes(row.server_key),
        ),
        change=row.change,
    )
