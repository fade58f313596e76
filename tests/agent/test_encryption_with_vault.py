"""Topics whose keys a real Vault encrypts (tests/support/vault.py), over the wire."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner

from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.running import Wire, a_batch, running
from tests.agent.test_encryption import ENCRYPTED, SECRET, produced, stored, until_read
from tests.support.vault import VaultKey, VaultServer
from tidelog.cli import app

REFUSED = [ErrorCode.not_enough_replicas]
TAKEN = [ErrorCode.none]


@asynccontextmanager
async def an_agent(database_url: str, folder: Path, vault: VaultKey, **changed: Any) -> AsyncIterator[Wire]:
    encryption = vault.settings(**changed)
    async with running(database_url, f"file://{folder}/store", encryption=encryption) as agent:
        wire = await Wire.connect(agent.app.kafka_port)
        yield wire
        wire.close()


async def test_records_are_sealed_with_a_key_that_vault_encrypts(
    database_url: str, tmp_path: Path, vault: VaultKey
) -> None:
    async with an_agent(database_url, tmp_path, vault) as wire:
        topic = await create(wire, "secrets", configs=ENCRYPTED, num_partitions=1)
        assert await produced(wire, "secrets", {0: a_batch(SECRET)}) == TAKEN
    async with an_agent(database_url, tmp_path, vault) as wire:
        [found] = await until_read(wire, topic, 0)
    assert SECRET in bytes(found.records)
    assert SECRET not in stored(tmp_path / "keys")
    assert vault.key.encode() in stored(tmp_path / "keys")


async def test_a_rewrap_after_a_rotation_in_vault_makes_the_old_version_unneeded(
    database_url: str, tmp_path: Path, vault: VaultKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"database_url": database_url, "store_url": f"file://{tmp_path}/store", **vault.given()}
    for name, value in given.items():
        monkeypatch.setenv(f"TIDELOG_{name.upper()}", value)

    async def keys(*arguments: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["keys", *arguments])
        assert result.exit_code == 0, result.output
        assert vault.token not in result.output
        return result.stdout

    async with an_agent(database_url, tmp_path, vault) as wire:
        for name in ("one", "two"):
            topic = await create(wire, name, configs=ENCRYPTED, num_partitions=1)
            assert await produced(wire, name, {0: a_batch(SECRET)}) == TAKEN
    assert "0 keys" in await keys("rewrap")

    vault.server.rotate(vault.key)
    await keys("rotate", "two")
    assert "2 keys anew; 1 needed nothing" in await keys("rewrap")

    listed = json.loads(await keys("list", "--json"))
    assert {one["wrapped_by"] for one in listed} == {f"vault:transit/{vault.key}:v2"}
    vault.server.call(f"transit/keys/{vault.key}/config", {"min_decryption_version": 2})
    async with an_agent(database_url, tmp_path, vault) as wire:
        [found] = await until_read(wire, topic, 0)
    assert SECRET in bytes(found.records)


async def test_the_command_names_what_vault_refuses(
    database_url: str, tmp_path: Path, vault: VaultKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"database_url": database_url, "store_url": f"file://{tmp_path}/store", **vault.given()}
    for name, value in given.items():
        monkeypatch.setenv(f"TIDELOG_{name.upper()}", value)
    vault.server.revoke(vault.token)

    result = await asyncio.to_thread(CliRunner().invoke, app, ["keys", "rewrap"])

    assert result.exit_code == 1
    assert f"the token in {vault.file} is not valid" in str(result.exception)
    assert vault.token not in f"{result.output} {result.exception!r}"


_AWAY: dict[str, Callable[[VaultServer], AbstractContextManager[None]]] = {
    "sealed": VaultServer.sealed,
    "halted": VaultServer.halted,
}


@pytest.mark.parametrize("away", _AWAY.values(), ids=_AWAY)
async def test_without_vault_an_agent_goes_on_with_the_keys_it_has(
    database_url: str,
    tmp_path: Path,
    vault: VaultKey,
    away: Callable[[VaultServer], AbstractContextManager[None]],
) -> None:
    changed = {"encryption_timeout_s": 3.0, "encryption_retry_s": 0}
    async with an_agent(database_url, tmp_path, vault, **changed) as wire:
        kept = await create(wire, "kept", configs=ENCRYPTED, num_partitions=1)
        await create(wire, "new", configs=ENCRYPTED, num_partitions=1)
        plain = await create(wire, "plain", configs=[], num_partitions=1)
        assert await produced(wire, "kept", {0: a_batch(b"before")}) == TAKEN

        with away(vault.server):
            assert await produced(wire, "new", {0: a_batch(SECRET)}) == REFUSED
            assert await produced(wire, "plain", {0: a_batch(b"plain")}) == TAKEN
            assert await produced(wire, "kept", {0: a_batch(SECRET)}) == TAKEN
            [found] = await until_read(wire, kept, 1)
            assert SECRET in bytes(found.records)
            [found] = await until_read(wire, plain, 0)
            assert b"plain" in bytes(found.records)

        assert await produced(wire, "new", {0: a_batch(SECRET)}) == TAKEN


async def test_a_token_that_ended_stops_topics_until_its_file_has_another(
    database_url: str, tmp_path: Path, vault: VaultKey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    changed = {"encryption_key_life_s": 0.001, "encryption_retry_s": 0}
    async with an_agent(database_url, tmp_path, vault, **changed) as wire:
        topic = await create(wire, "locked", configs=ENCRYPTED, num_partitions=1)
        assert await produced(wire, "locked", {0: a_batch(SECRET)}) == TAKEN
        ended = vault.token
        vault.server.revoke(ended)

        assert await produced(wire, "locked", {0: a_batch(SECRET)}) == REFUSED
        [found] = await until_read(wire, topic, 0)
        assert found.error_code is ErrorCode.kafka_storage_error

        other = vault.renew()
        assert await produced(wire, "locked", {0: a_batch(SECRET)}) == TAKEN
        [found] = await until_read(wire, topic, 0)
        assert SECRET in bytes(found.records)
    said = [str(vars(record)) for record in caplog.records]
    assert any(f"the token in {vault.file} is not valid" in one for one in said)
    assert not any(token in one for one in said for token in (ended, other))
