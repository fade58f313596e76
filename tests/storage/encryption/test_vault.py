"""The keys of topics are encrypted by a real Vault (tests/support/vault.py)."""

import logging
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from storage.encryption.key_wrapping import KeyUnavailable, KeyWrapping
from storage.identifiers import KeyId, TopicId
from tests.support.certificates import Authority
from tests.support.vault import POLICY, VaultKey

TOPIC, KEY, SECRET = TopicId(uuid4()), KeyId(1), os.urandom(32)


async def refusal(keys: KeyWrapping, name: str | None = None, wrapped: bytes = b"") -> str:
    """Returns why a key is not encrypted, or not decrypted."""
    asked = keys.wrap(SECRET, TOPIC, KEY) if name is None else keys.unwrap(name, wrapped, TOPIC, KEY)
    with pytest.raises(KeyUnavailable) as caught:
        await asked
    return str(caught.value)


async def test_vault_encrypts_a_key_for_one_topic_and_id(vault: VaultKey) -> None:
    keys = vault.keys()
    name, wrapped = await keys.wrap(SECRET, TOPIC, KEY)

    assert name == await keys.name() == f"vault:transit/{vault.key}:v1"
    assert SECRET not in wrapped
    assert await keys.unwrap(name, wrapped, TOPIC, KEY) == SECRET
    for place in ((TOPIC, KeyId(2)), (TopicId(uuid4()), KEY)):
        with pytest.raises(KeyUnavailable, match="it is of another topic"):
            await keys.unwrap(name, wrapped, *place)


async def test_a_rotated_key_has_another_name_and_decrypts_what_it_encrypted(vault: VaultKey) -> None:
    keys = vault.keys()
    name, wrapped = await keys.wrap(SECRET, TOPIC, KEY)
    vault.server.rotate(vault.key)

    assert await keys.name() == f"vault:transit/{vault.key}:v2"
    assert await keys.unwrap(name, wrapped, TOPIC, KEY) == SECRET

    vault.server.call(f"transit/keys/{vault.key}/config", {"min_decryption_version": 2})
    assert "lower it, and run `tidelog keys rewrap`" in await refusal(keys, name, wrapped)


async def test_a_version_that_was_trimmed_decrypts_nothing(vault: VaultKey) -> None:
    keys, path = vault.keys(), f"transit/keys/{vault.key}"
    name, wrapped = await keys.wrap(SECRET, TOPIC, KEY)
    vault.server.rotate(vault.key)
    vault.server.call(f"{path}/config", {"min_decryption_version": 2, "min_encryption_version": 2})
    vault.server.call(f"{path}/trim", {"min_available_version": 2})

    assert "disallowed" in await refusal(keys, name, wrapped)
    name, wrapped = await keys.wrap(SECRET, TOPIC, KEY)
    assert await keys.unwrap(name, wrapped, TOPIC, KEY) == SECRET


async def test_what_an_older_or_another_key_of_the_name_cannot_decrypt_is_named(vault: VaultKey) -> None:
    keys, other = vault.keys(), vault.server.key()
    vault.server.rotate(vault.key)
    _, wrapped = await keys.wrap(SECRET, TOPIC, KEY)
    vault.may(other)
    assert "restore it from a newer backup" in await refusal(keys, f"vault:transit/{other}:v2", wrapped)
    vault.server.rotate(other)
    assert "another key that had this name" in await refusal(keys, f"vault:transit/{other}:v2", wrapped)


async def test_another_key_of_vault_decrypts_with_the_one_that_encrypted(vault: VaultKey) -> None:
    name, wrapped = await vault.keys().wrap(SECRET, TOPIC, KEY)
    vault.server.mount("teams/a")
    other = vault.server.key("teams/a", type="chacha20-poly1305")
    vault.may(other, mount="teams/a", paths=(*POLICY, f"transit/decrypt/{vault.key}"))
    keys = vault.keys(encryption_key=other, encryption_vault_mount="teams/a")

    assert await keys.unwrap(name, wrapped, TOPIC, KEY) == SECRET
    name, wrapped = await keys.wrap(SECRET, TOPIC, KEY)
    assert name == f"vault:teams/a/{other}:v1"
    assert await keys.unwrap(name, wrapped, TOPIC, KEY) == SECRET


async def test_a_token_that_ended_is_named_and_a_new_one_in_the_file_counts_at_once(vault: VaultKey) -> None:
    keys = vault.keys()
    vault.server.revoke(vault.token)
    assert f"the token in {vault.file} is not valid" in await refusal(keys)

    vault.renew()
    name, wrapped = await keys.wrap(SECRET, TOPIC, KEY)
    vault.renew()
    assert await keys.unwrap(name, wrapped, TOPIC, KEY) == SECRET


async def test_a_policy_without_the_right_is_named(vault: VaultKey) -> None:
    name, wrapped = await vault.keys().wrap(SECRET, TOPIC, KEY)
    vault.may(vault.key, paths=POLICY[1:])
    reason = await refusal(vault.keys())
    assert f"does not allow update on transit/encrypt/{vault.key}" in reason
    assert await vault.keys().unwrap(name, wrapped, TOPIC, KEY) == SECRET

    vault.may(vault.key, paths=POLICY[:1])
    assert f"and transit/decrypt/{vault.key}" in await refusal(vault.keys(), name, wrapped)


def test_the_manual_has_the_policy_of_these_tests() -> None:
    manual = (Path(__file__).parents[3] / "docs/encryption.md").read_text()
    for path in POLICY:
        rule = f'path "{path.format(mount="transit", key="tidelog")}" {{ capabilities = ["update"] }}'
        assert rule in manual


async def test_a_missing_key_is_named_and_not_made(vault: VaultKey) -> None:
    vault.may("misspelt")
    assert "the key is missing, or the policy" in await refusal(vault.keys(encryption_key="misspelt"))
    assert "restore it" in await refusal(vault.keys(), "vault:transit/misspelt:v1", b"vault:v1:aaaa")
    assert not vault.server.has_key("misspelt")


@pytest.mark.parametrize(
    ("fields", "to_do"),
    [
        ({"type": "rsa-2048"}, "needs a type with associated data"),
        ({"type": "aes256-gcm96", "derived": True}, "make one without derivation"),
    ],
    ids=["rsa", "derived"],
)
async def test_a_key_of_a_type_that_does_not_fit_is_named(
    vault: VaultKey, fields: dict[str, Any], to_do: str
) -> None:
    key = vault.server.key(**fields)
    vault.may(key)
    assert to_do in await refusal(vault.keys(encryption_key=key))


@pytest.mark.parametrize("kind", ["aes128-gcm96", "aes256-gcm96", "chacha20-poly1305"])
async def test_each_type_with_associated_data_binds_a_key_to_its_topic(vault: VaultKey, kind: str) -> None:
    key = vault.server.key(type=kind)
    vault.may(key)
    keys = vault.keys(encryption_key=key)
    name, wrapped = await keys.wrap(SECRET, TOPIC, KEY)
    assert await keys.unwrap(name, wrapped, TOPIC, KEY) == SECRET
    with pytest.raises(KeyUnavailable):
        await keys.unwrap(name, wrapped, TopicId(uuid4()), KEY)


async def test_a_mount_that_is_not_there_is_named(vault: VaultKey) -> None:
    vault.may(vault.key, mount="elsewhere")
    reason = await refusal(vault.keys(encryption_vault_mount="elsewhere"))
    assert "no transit engine at elsewhere: check TIDELOG_ENCRYPTION_VAULT_MOUNT" in reason


async def test_a_sealed_vault_is_named_and_serves_again_once_it_is_unsealed(vault: VaultKey) -> None:
    keys = vault.keys()
    with vault.server.sealed():
        assert "unseal it" in await refusal(keys)
    name, wrapped = await keys.wrap(SECRET, TOPIC, KEY)
    assert await keys.unwrap(name, wrapped, TOPIC, KEY) == SECRET


async def test_a_vault_that_hangs_is_named(vault: VaultKey) -> None:
    with vault.server.halted():
        reason = await refusal(vault.keys(encryption_timeout_s=1.0))
    assert f"Vault at {vault.server.address} gave no answer" in reason


async def test_a_ca_that_did_not_sign_is_named_and_another_file_counts_at_once(
    vault: VaultKey, tmp_path: Path
) -> None:
    keys = vault.keys()
    vault.trust(Authority.make(tmp_path / "other"))
    assert "not trusted: set TIDELOG_ENCRYPTION_VAULT_CA_FILE" in await refusal(keys)
    assert "not trusted" in await refusal(vault.keys(encryption_vault_ca_file=None))

    vault.trust(vault.server.authority)
    await keys.wrap(SECRET, TOPIC, KEY)
    vault.trust(vault.server.authority, comment="# Prüfstelle\n")
    await keys.wrap(SECRET, TOPIC, KEY)


async def test_a_certificate_of_another_host_is_refused(vault: VaultKey) -> None:
    address = vault.server.address.replace("localhost", "127.0.0.1")
    reason = await refusal(vault.keys(encryption_vault_address=address))
    assert "certificate is not valid for '127.0.0.1'" in reason


async def test_an_address_without_tls_is_named(vault: VaultKey) -> None:
    address = vault.server.address.replace("https", "http")
    assert "must begin with https://" in await refusal(vault.keys(encryption_vault_address=address))


async def test_neither_token_nor_secret_is_in_a_log_or_an_error(
    vault: VaultKey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys = vault.keys()
    name, wrapped = await keys.wrap(SECRET, TOPIC, KEY)
    await keys.unwrap(name, wrapped, TOPIC, KEY)
    told = [
        repr(keys),
        *(repr(vars(part)) for part in (keys, *vars(keys).values()) if hasattr(part, "__dict__")),
    ]
    vault.server.revoke(vault.token)
    told += [await refusal(keys), await refusal(keys, name, wrapped)]

    assert "httpcore" in caplog.text
    for hidden in (vault.token, SECRET.hex(), SECRET.decode("latin-1")):
        assert hidden not in f"{caplog.text} {told}"
