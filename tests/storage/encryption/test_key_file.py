"""The file of key encryption keys."""

import base64
from pathlib import Path
from uuid import uuid4

import pytest

from storage.encryption.key_wrapping import FileKeys, KeyUnavailable
from storage.identifiers import KeyId, TopicId
from tests.support.key_file import key_line

KEY = base64.b64encode(bytes(range(32))).decode()
SHORT = base64.b64encode(bytes(range(16))).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs keys of 32 bytes"),
        ("# only a comment\n", "needs keys of 32 bytes"),
        (f"short {SHORT}\n", "needs keys of 32 bytes"),
        (f"{KEY}\n", "a line has a name and a base64 key"),
        (f"name {KEY} more\n", "a line has a name and a base64 key"),
        ("name not-base64!\n", "a line has a name and a base64 key"),
        (f"twice {KEY}\ntwice {SHORT}\n", "has twice twice"),
        ("name \x00\udcff\n", "a line has a name and a base64 key"),
    ],
)
async def test_a_file_that_is_wrong_says_so_and_no_key_of_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(KeyUnavailable, match=message) as refused:
        await FileKeys(path).wrap(bytes(32), TopicId(uuid4()), KeyId(1))
    assert KEY not in str(refused.value)


async def test_a_key_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    path, topic = tmp_path / "keys", TopicId(uuid4())
    path.write_text(f"name {KEY}\n")
    name, wrapped = await FileKeys(path).wrap(bytes(32), topic, KeyId(1))
    path.write_text(key_line("name"))
    with pytest.raises(KeyUnavailable, match="is another than the one of that name"):
        await FileKeys(path).unwrap(name, wrapped, topic, KeyId(1))


async def test_a_wrapped_key_that_is_cut_is_refused(tmp_path: Path) -> None:
    path, topic = tmp_path / "keys", TopicId(uuid4())
    path.write_text(f"name {KEY}\n")
    name, wrapped = await FileKeys(path).wrap(bytes(32), topic, KeyId(1))
    for length in (0, 11, 12, 27, len(wrapped) - 1):
        with pytest.raises(KeyUnavailable):
            await FileKeys(path).unwrap(name, wrapped[:length], topic, KeyId(1))
