"""The opening of a forwarding connection: a hello is read as written, and other bytes are refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.forwarding.forward_protocol import (
    HELLO_LENGTH_BYTES,
    PREFACE,
    BadHello,
    Hello,
    decode_hello,
    encode_hello,
)
from agent.security.principal import ANONYMOUS, Principal
from cache_ring.peers import page_protocol
from storage.identifiers import NodeId

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
PRINCIPALS = st.builds(Principal, TEXT, TEXT.filter(lambda kind: ":" not in kind))


@given(
    st.builds(
        Hello, node_id=st.integers(-1, 2**31 - 1).map(NodeId), zone=TEXT, client=TEXT, principal=PRINCIPALS
    )
)
def test_a_hello_survives_encoding(hello: Hello) -> None:
    encoded = encode_hello(hello)

    assert int.from_bytes(encoded[:HELLO_LENGTH_BYTES], "big") == len(encoded) - HELLO_LENGTH_BYTES
    assert decode_hello(encoded[HELLO_LENGTH_BYTES:]) == hello


def test_a_text_too_long_is_cut_between_characters() -> None:
    hello = Hello(node_id=NodeId(1), zone="a", client="ä" * 500, principal=ANONYMOUS)

    assert decode_hello(encode_hello(hello)[HELLO_LENGTH_BYTES:]).client == "ä" * 127


def test_a_principal_too_long_is_refused_because_a_part_of_it_is_another_one() -> None:
    with pytest.raises(BadHello):
        encode_hello(Hello(node_id=NodeId(1), zone="a", client="x:1", principal=Principal("x" * 40_000)))


@given(st.binary(max_size=80))
def test_any_bytes_are_a_hello_or_refused(body: bytes) -> None:
    with contextlib.suppress(BadHello):
        decode_hello(body)


def test_a_hello_longer_than_it_says_is_refused() -> None:
    body = encode_hello(Hello(node_id=NodeId(1), zone="a", client="x:1", principal=ANONYMOUS))[
        HELLO_LENGTH_BYTES:
    ]

    with pytest.raises(BadHello):
        decode_hello(body + b"!")


def test_prefaces_of_both_protocols_have_the_same_length() -> None:
    assert len(PREFACE) == len(page_protocol.PREFACE)
    assert page_protocol.PREFACE != PREFACE
