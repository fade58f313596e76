"""Vault that is away, or something else at its address; and settings that do not fit. No test needs Vault:
test_vault.py has the rest.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from storage.encryption.key_wrapping import KeyUnavailable, KeyWrapping, Vault, key_wrapping
from storage.encryption.settings import EncryptionSettings
from storage.encryption.vault_transit import ANSWER_BYTES
from storage.identifiers import KeyId, TopicId
from tests.support.secret_watch import watch

TOKEN = "hvs.not-for-anybody-to-see"
TOPIC, KEY = TopicId(uuid4()), KeyId(1)
watch(TOKEN)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def settings(token_file: Path, address: str, **more: Any) -> EncryptionSettings:
    return EncryptionSettings.model_validate(
        {
            "encryption_provider": "vault",
            "encryption_key": "tidelog",
            "encryption_vault_address": address,
            "encryption_vault_token_file": str(token_file),
            **more,
        }
    )


def vault(token_file: Path, address: str, **more: Any) -> KeyWrapping:
    found = key_wrapping(settings(token_file, address, **more))
    assert isinstance(found, Vault)
    return found


class Elsewhere:
    """A server that is not Vault: it gives each request the same bytes, and keeps what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[bytes] = []
        self.address = ""

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        with suppress(ConnectionError, asyncio.CancelledError):
            await reader.read()
        writer.close()


@asynccontextmanager
async def elsewhere(status: str, body: bytes, *headers: str) -> AsyncIterator[Elsewhere]:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    found = Elsewhere("\r\n".join(lines).encode() + body)
    async with await asyncio.start_server(found.take, "127.0.0.1", 0) as server:
        found.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield found


_ODD_ANSWERS = {
    "no-json": ("200 OK", b"<html>welcome</html>"),
    "no-object": ("200 OK", b"[]"),
    "data-is-no-object": ("200 OK", b'{"data": "vault:v1:aaaa"}'),
    "no-ciphertext": ("200 OK", b'{"data": {"other": "AAAA"}}'),
    "ciphertext-is-no-text": ("200 OK", b'{"data": {"ciphertext": 1}}'),
    "ciphertext-of-another-kind": ("200 OK", b'{"data": {"ciphertext": "v1:aaaa"}}'),
    "nested-deeply": ("200 OK", b"[" * 60_000),
    "not-text": ("200 OK", b"\xff\xfe"),
    "errors-are-no-list": ("400 Bad Request", b'{"errors": {"a": 1}}'),
    "empty": ("502 Bad Gateway", b""),
}


@pytest.mark.parametrize(("status", "body"), _ODD_ANSWERS.values(), ids=_ODD_ANSWERS)
async def test_an_answer_that_is_not_vaults_is_refused(token_file: Path, status: str, body: bytes) -> None:
    async with elsewhere(status, body) as found:
        keys = vault(token_file, found.address)
        with pytest.raises(KeyUnavailable, match="Vault at http"):
            await keys.wrap(bytes(32), TOPIC, KEY)
        with pytest.raises(KeyUnavailable, match="Vault at http"):
            await keys.unwrap("vault:transit/tidelog:v1", b"vault:v1:aaaa", TOPIC, KEY)


@pytest.mark.parametrize("plaintext", ["AAAA", "not base64", ""])
async def test_a_key_of_another_length_is_refused(token_file: Path, plaintext: str) -> None:
    async with elsewhere("200 OK", b'{"data": {"plaintext": "%s"}}' % plaintext.encode()) as found:
        with pytest.raises(KeyUnavailable):
            await vault(token_file, found.address).unwrap("vault:transit/tidelog:v1", b"any", TOPIC, KEY)


async def test_an_answer_has_a_bounded_size(token_file: Path) -> None:
    async with elsewhere("200 OK", b'{"data": "' + b"a" * ANSWER_BYTES + b'"}') as found:
        with pytest.raises(KeyUnavailable, match=f"more than {ANSWER_BYTES} bytes"):
            await vault(token_file, found.address).wrap(bytes(32), TOPIC, KEY)


async def test_the_token_follows_no_redirect(token_file: Path) -> None:
    async with (
        elsewhere("200 OK", b"{}") as target,
        elsewhere("307 Temporary Redirect", b"", f"Location: {target.address}/v1/x") as found,
    ):
        with pytest.raises(KeyUnavailable, match="redirects to another server"):
            await vault(token_file, found.address).wrap(bytes(32), TOPIC, KEY)
        assert TOKEN.encode() in found.asked[0]
        assert target.asked == []


async def test_the_namespace_and_what_an_agent_in_front_of_vault_wants_are_sent(token_file: Path) -> None:
    async with elsewhere("200 OK", b"{}") as found:
        with pytest.raises(KeyUnavailable):
            await vault(token_file, found.address, encryption_vault_namespace="teams/a").wrap(
                bytes(32), TOPIC, KEY
            )
        assert b"\r\nX-Vault-Namespace: teams/a\r\n" in found.asked[0]
        assert b"\r\nX-Vault-Request: true\r\n" in found.asked[0]


async def test_a_proxy_sees_no_token_in_the_clear(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with elsewhere("200 OK", b"{}") as proxy, elsewhere("200 OK", b"{}") as found:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.address)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(KeyUnavailable):
            await vault(token_file, found.address).wrap(bytes(32), TOPIC, KEY)
        assert len(found.asked) == 1
        assert proxy.asked == []
        with pytest.raises(KeyUnavailable):
            await vault(token_file, "https://vault:8200").wrap(bytes(32), TOPIC, KEY)
        assert proxy.asked[0].startswith(b"CONNECT vault:8200 ")
        assert TOKEN.encode() not in proxy.asked[0]


async def test_a_token_that_the_server_repeats_is_in_no_error(token_file: Path) -> None:
    async with elsewhere("400 Bad Request", f"what is {TOKEN}?".encode()) as found:
        keys = vault(token_file, found.address)
        with pytest.raises(KeyUnavailable, match=r"what is \*\*\*\?") as caught:
            await keys.wrap(bytes(32), TOPIC, KEY)
    assert TOKEN not in f"{caught.value!r} {vars(keys)}"


async def test_names_are_quoted_and_lead_nowhere_else(token_file: Path) -> None:
    async with elsewhere("200 OK", b"{}") as found:
        keys = vault(
            token_file, found.address, encryption_vault_mount="teams/a b", encryption_key="k?x=1#é%2e"
        )
        with pytest.raises(KeyUnavailable):
            await keys.wrap(bytes(32), TOPIC, KEY)
        line = found.asked[0].split(b"\r\n")[0]
        assert line == b"POST /v1/teams/a%20b/encrypt/k%3Fx%3D1%23%C3%A9%252e HTTP/1.1"
        for name in ("vault:../sys/k:v1", "vault:transit/..:v1", "vault:a//k:v1", "vault:a/./k:v1"):
            with pytest.raises(KeyUnavailable, match="not the name of a key in Vault"):
                await keys.unwrap(name, b"vault:v1:aaaa", TOPIC, KEY)
        for name in ("file:first", "aws-kms:arn", "vault:tidelog:v1", "vault:transit/tidelog"):
            with pytest.raises(KeyUnavailable, match="this process asks Vault"):
                await keys.unwrap(name, b"vault:v1:aaaa", TOPIC, KEY)
        assert len(found.asked) == 1


async def test_a_vault_that_is_away_is_named(token_file: Path) -> None:
    with pytest.raises(KeyUnavailable, match="cannot be reached: check TIDELOG_ENCRYPTION_VAULT_ADDRESS"):
        await vault(token_file, "http://127.0.0.1:9").wrap(bytes(32), TOPIC, KEY)


async def test_a_vault_that_does_not_answer_is_named_within_the_bound(token_file: Path) -> None:
    found = Elsewhere(b"")
    async with await asyncio.start_server(found.take, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        keys = vault(token_file, address, encryption_timeout_s=1.0)
        with pytest.raises(KeyUnavailable, match=f"Vault at {address} gave no answer"):
            await keys.wrap(bytes(32), TOPIC, KEY)
    assert found.asked


async def test_a_token_file_that_hangs_is_named_within_the_bound(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    keys = vault(pipe, "http://127.0.0.1:9", encryption_timeout_s=1.0)
    with pytest.raises(KeyUnavailable, match=f"TOKEN_FILE: {pipe} cannot be read"):
        await keys.wrap(bytes(32), TOPIC, KEY)
    os.close(os.open(pipe, os.O_WRONLY))  # lets the thread go that reads


@pytest.mark.parametrize(
    "text", ["", "two tokens", '{"token": "wrapped"}', "töken"], ids=["empty", "two", "json", "unicode"]
)
async def test_a_file_without_a_token_is_named(token_file: Path, text: str) -> None:
    write(token_file, text.encode())
    with pytest.raises(KeyUnavailable, match=r"VAULT_TOKEN_FILE: .* has no token"):
        await vault(token_file, "http://127.0.0.1:9").wrap(bytes(32), TOPIC, KEY)


async def test_files_that_are_missing_or_no_text_are_named(token_file: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyUnavailable, match=r"VAULT_TOKEN_FILE: .*No such file"):
        await vault(tmp_path / "missing", "http://127.0.0.1:9").wrap(bytes(32), TOPIC, KEY)
    for name, text in (("empty", b""), ("line", b"\n")):
        write(tmp_path / name, text)
    for ca_file in ("missing", "token", "empty", "line"):
        keys = vault(token_file, "https://127.0.0.1:9", encryption_vault_ca_file=str(tmp_path / ca_file))
        with pytest.raises(KeyUnavailable, match="VAULT_CA_FILE: ") as caught:
            await keys.wrap(bytes(32), TOPIC, KEY)
        assert TOKEN not in str(caught.value)
    write(token_file, b"\xff\xff")
    with pytest.raises(KeyUnavailable, match=r"VAULT_TOKEN_FILE: .* is not text"):
        await vault(token_file, "http://127.0.0.1:9").wrap(bytes(32), TOPIC, KEY)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"encryption_vault_address": None}, "VAULT_ADDRESS"),
        ({"encryption_vault_address": "vault:8200"}, "VAULT_ADDRESS"),
        ({"encryption_vault_address": "http://vault:8200"}, "use https"),
        ({"encryption_vault_address": "http://192.0.2.1"}, "use https"),
        ({"encryption_vault_address": "https://vault:8200?a=b"}, "VAULT_ADDRESS"),
        ({"encryption_vault_address": "https://me:secret@vault"}, "no password"),
        ({"encryption_vault_token_file": None}, "VAULT_TOKEN_FILE"),
        ({"encryption_vault_mount": "/transit"}, "VAULT_MOUNT"),
        ({"encryption_vault_mount": "transit/"}, "VAULT_MOUNT"),
        ({"encryption_vault_mount": "a/../sys"}, "VAULT_MOUNT"),
        ({"encryption_key": "transit/tidelog"}, "TIDELOG_ENCRYPTION_KEY"),
        ({"encryption_key": ".."}, "TIDELOG_ENCRYPTION_KEY"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(token_file: Path, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        EncryptionSettings.model_validate(settings(token_file, "https://vault:8200").model_dump() | changed)
