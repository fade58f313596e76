"""The command: its keys, its errors, and its report for people and programs."""

import asyncio
import json
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from sequencer.tenants.tenant_limits import TenantLimits
from tests.erasure.conftest import SECRET, Place
from tests.erasure.test_raw_log import PARTITIONS, left_of, rows_of, write
from tidelog.cli import app
from tidelog.errors import UserError


@pytest.fixture(autouse=True)
def environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.settings.model_dump(exclude_unset=True, exclude_none=True).items():
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        monkeypatch.setenv(f"TIDELOG_{name.upper()}", text)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["erase", *arguments], catch_exceptions=False)


async def test_keys_come_from_options_and_files_and_the_report_is_json(place: Place, tmp_path: Path) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place)
    file = tmp_path / "keys"
    file.write_bytes(b"6b65792d33\r\n\n6b65792d34\n")

    async with place.kept():
        given = ("--key", b"K".hex(), "--keys-file", str(file), "--hex", "--json")
        found = await asyncio.to_thread(_run, "orders", *given)

    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    gone = (b"K", b"key-3", b"key-4")
    assert report["keys"] == 3
    assert report["raw_records"] == len(place.log.expected["orders"]) - len(left_of(place, erased=gone))
    assert await rows_of(place) == left_of(place, erased=gone)
    assert await place.objects_with(SECRET) == []


async def test_the_report_says_what_was_rewritten(place: Place) -> None:
    await place.log.topic("orders", PARTITIONS, retention_ms="-1")
    await write(place)

    async with place.kept():
        found = await asyncio.to_thread(_run, "orders", "--key", "K")

    assert found.exit_code == 0, found.output
    assert "orders: 1 key erased in" in found.stdout
    assert "records erased" in found.stdout


async def test_a_tenants_topic_is_erased_by_its_full_name_and_no_other_of_that_name(place: Place) -> None:
    for tenant in ("acme", "beta"):
        await place.sequencer.tenants.create(tenant, [], TenantLimits())
        await place.log.topic(f"{tenant}~orders", PARTITIONS, retention_ms="-1")
        await write(place, 2, topic=f"{tenant}~orders")

    async with place.kept():
        found = await asyncio.to_thread(_run, "acme~orders", "--key", "K")

    assert found.exit_code == 0, found.output
    assert "acme~orders: 1 key erased in" in found.stdout
    assert await rows_of(place, "acme~orders") == left_of(place, "acme~orders")
    assert await rows_of(place, "beta~orders") == left_of(place, "beta~orders", erased=())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("orders", "--json"), "Nothing to erase"),
        (("orders", "--key", "xyz", "--hex"), "not hexadecimal"),
        (("nothing", "--key", "K"), "There is no topic 'nothing'"),
    ],
)
async def test_what_cannot_be_erased_is_said(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        await asyncio.to_thread(_run, *arguments)


async def test_an_encrypted_topic_without_its_keys_is_refused_and_the_fix_is_named(place: Place) -> None:
    await place.log.topic("orders", 1, tidelog_encryption="on")

    with pytest.raises(UserError, match=r"'orders' is encrypted: .*TIDELOG_ENCRYPTION_PROVIDER"):
        await asyncio.to_thread(_run, "orders", "--key", "a")
