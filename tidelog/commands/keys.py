"""`tidelog keys`: the keys of topics with tidelog.encryption=on (docs/encryption.md)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sequencer.client import Sequencer, SequencerSettings
from sequencer.cluster.ownership import OwnershipLost
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.topics.topic_key_cache import new_version
from sequencer.topics.topic_keys import ListedKey, TopicKeyRows
from storage.encryption.key_objects import KeyObjects, WrappedKey
from storage.encryption.key_wrapping import KeyUnavailable, KeyWrapping, key_wrapping
from storage.encryption.settings import EncryptionSettings
from storage.stores.object_store import StoreSettings, StoreUnavailable
from storage.stores.open_store import open_store
from tidelog.audit import audited
from tidelog.errors import UserError
from tidelog.find_cluster import find_cluster, require
from tidelog.output import counted, print_json
from tidelog.process.environment import Environment
from tidelog.process.setting_options import with_settings
from tidelog.process.settings import ClientSettings

Result = TypeVar("Result")
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The keys of encrypted topics: list them, rotate them, encrypt them with another key.",
)
_USED = ("database_url", "data_dir", "store_url", "cluster", "encryption_provider", "encryption_key",
         "encryption_kms_endpoint", "encryption_kms_region", "encryption_vault_address",
         "encryption_vault_mount", "encryption_vault_namespace", "encryption_vault_token_file",
         "encryption_vault_ca_file", "encryption_timeout_s")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrapped:
    changed: int
    already: int
    """These were encrypted by the key that encrypts now, or changed or destroyed meanwhile."""


@app.command("list")
@with_settings(ClientSettings, only=_USED)
def list_keys(
    environment: Environment,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Every key of a topic, and the key that encrypts it."""

    async def found(sequencer: Sequencer, _: KeyObjects) -> list[ListedKey]:
        return [one async for one in sequencer.topic_keys.all()]

    keys = _run(environment, found, writes=False)
    if as_json:
        print_json(
            [
                {
                    "topic": one.topic,
                    "version": one.key.version,
                    "key_id": f"{one.key.key_id:016x}",
                    "wrapped_by": one.key.wrapped_by,
                    "created_at": one.created_at.isoformat(),
                }
                for one in keys
            ]
        )
        return
    columns = ("topic", "version", "id", "encrypted by", "made")
    table = Table(*columns, title=counted(len(keys), "key"), header_style="bold cyan")
    for one in sorted(keys, key=lambda listed: (listed.topic, listed.key.version)):
        made = f"{one.created_at:%Y-%m-%d %H:%M}"
        table.add_row(
            escape(one.topic),
            str(one.key.version),
            f"{one.key.key_id:016x}",
            escape(one.key.wrapped_by),
            made,
        )
    Console().print(table)


@app.command()
@with_settings(ClientSettings, EncryptionSettings, only=_USED)
def rotate(
    environment: Environment, topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)]
) -> None:
    """Give a topic a new key for new batches. Older batches keep the key that they have."""
    wrapping = _wrapping(environment)

    async def rotated(sequencer: Sequencer, objects: KeyObjects) -> WrappedKey:
        found = (await sequencer.topics.by_name([topic])).get(topic)
        if found is None:
            raise UserError(f"There is no topic {topic}.")
        newest = await sequencer.topic_keys.newest(found.topic_id)
        version = 1 if newest is None else newest.version + 1
        return await new_version(sequencer.topic_keys, objects, wrapping, found.topic_id, version)

    with audited(environment, "tidelog keys rotate", "TOPIC_KEY", topic):
        key = _run(environment, rotated)
    Console().print(f"[bold]{escape(topic)}[/] has key [green]{key.version}[/]. Agents use it within")
    Console().print("TIDELOG_ENCRYPTION_KEY_LIFE_S.")


@app.command()
@with_settings(ClientSettings, EncryptionSettings, only=_USED)
def rewrap(environment: Environment) -> None:
    """Encrypt the keys of all topics with the key encryption key of now. Can be repeated after a failure."""
    wrapping = _wrapping(environment)
    with audited(environment, "tidelog keys rewrap", "TOPIC_KEY", "*"):
        found = _run(environment, partial(_rewrapped, wrapping))
    Console().print(f"Encrypted {counted(found.changed, 'key')} anew; {found.already} needed nothing.")


async def _rewrapped(wrapping: KeyWrapping, sequencer: Sequencer, objects: KeyObjects) -> Rewrapped:
    return await rewrap_all(sequencer.topic_keys, objects, wrapping)


async def rewrap_all(rows: TopicKeyRows, objects: KeyObjects, wrapping: KeyWrapping) -> Rewrapped:
    """Encrypts each key with the key encryption key of now, in the bucket and in Postgres, and writes each
    copy in the bucket. Raises KeyUnavailable at the first that cannot be decrypted; the others before it are
    done. Raises StoreUnavailable."""
    changed = already = 0
    name = await wrapping.name()
    async for one in rows.all():
        key = after = one.key
        if key.wrapped_by != name:
            secret = await wrapping.unwrap(key.wrapped_by, key.wrapped, key.topic_id, key.key_id)
            wrapped_by, wrapped = await wrapping.wrap(secret, key.topic_id, key.key_id)
            after = replace(key, wrapped_by=wrapped_by, wrapped=wrapped)
        # Before the row: whoever finds the row encrypted by `name` finds the copy so.
        await objects.put(after)
        if after is not key and await rows.rewrap(key, after):
            changed += 1
        else:
            already += 1
        await _agree(rows, objects, after)
    return Rewrapped(changed=changed, already=already)


async def _agree(rows: TopicKeyRows, objects: KeyObjects, put: WrappedKey) -> None:
    """Makes the bucket's copy like the row, if another changed or destroyed the key since it was read."""
    while (now := await rows.of_id(put.topic_id, put.key_id)) is not None and now.wrapped != put.wrapped:
        await objects.put(now)
        put = now
    if now is None:
        await objects.delete([(put.topic_id, put.key_id)])


def _wrapping(environment: Environment) -> KeyWrapping:
    found = key_wrapping(find_cluster(environment).read(EncryptionSettings))
    if found is None:
        raise UserError("Set TIDELOG_ENCRYPTION_PROVIDER and TIDELOG_ENCRYPTION_KEY as for the agents.")
    return found


def _run(
    environment: Environment,
    work: Callable[[Sequencer, KeyObjects], Awaitable[Result]],
    *,
    writes: bool = True,
) -> Result:
    """`writes`: the work changes the bucket, so a copied database may not do it: it would replace the copies
    of keys that the bucket's owner needs.
    """
    found = find_cluster(environment)
    client = found.read(ClientSettings)
    database_url, store_url = require(client, "database_url"), require(client, "store_url")
    settings, store_settings = found.read(SequencerSettings), found.read(StoreSettings)

    async def run() -> Result:
        store = await open_store(store_url, store_settings)
        try:
            sequencer = await Sequencer.open(database_url, settings)
            try:
                if writes:
                    await sequencer.ownership.check_object(store, client.cluster)
                return await work(sequencer, KeyObjects(store, client.cluster))
            finally:
                await sequencer.close()
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except OwnershipLost as lost:
        raise UserError(f"The keys stay as they are: {lost}") from None
    except (KeyUnavailable, StoreUnavailable) as error:
        raise UserError(f"{error}.") from None
    except SequencerUnavailable as away:
        raise UserError(" ".join(str(away).split())) from None
    except CommitOutcomeUnknown:
        raise UserError("The connection was lost; the change may have been made. Run it again.") from None
