"""The proof between two agents: only an agent that knows a common secret is accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_ring.peers.peer_proof import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Initiator,
    NotAPeer,
    Responder,
)
from sequencer.cluster.agents import PeerSecret

OLD, NEW, OTHER = (PeerSecret(value=bytes([number]) * 32) for number in (1, 2, 3))
INITIATORS_NONCE, RESPONDERS_NONCE = b"a" * NONCE_BYTES, b"b" * NONCE_BYTES
EITHER = st.sampled_from([(), (OLD,), (NEW,), (OTHER,), (NEW, OLD), (OTHER, NEW)])


def prove(of_initiator: tuple[PeerSecret, ...], of_responder: tuple[PeerSecret, ...]) -> None:
    initiator, responder = (
        Initiator(of_initiator, INITIATORS_NONCE),
        Responder(of_responder, RESPONDERS_NONCE),
    )
    challenge = responder.challenge(initiator.hello)
    proof = initiator.proof(challenge)
    responder.check(proof)
    assert (len(initiator.hello), len(challenge), len(proof)) == (HELLO_BYTES, CHALLENGE_BYTES, PROOF_BYTES)


@given(of_initiator=EITHER, of_responder=EITHER)
def test_two_agents_accept_each_other_exactly_if_they_share_a_secret(
    of_initiator: tuple[PeerSecret, ...], of_responder: tuple[PeerSecret, ...]
) -> None:
    if set(of_initiator) & set(of_responder):
        prove(of_initiator, of_responder)
    else:
        with pytest.raises(NotAPeer):
            prove(of_initiator, of_responder)


def test_the_newest_common_secret_is_used() -> None:
    challenge = Responder((NEW, OLD), RESPONDERS_NONCE).challenge(
        Initiator((NEW, OLD), INITIATORS_NONCE).hello
    )

    with pytest.raises(NotAPeer, match="does not know"):
        Initiator((OLD,), INITIATORS_NONCE).proof(challenge)


@given(st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES))
def test_bytes_of_a_stranger_are_no_hello(hello: bytes) -> None:
    with pytest.raises(NotAPeer):
        Responder((NEW, OLD), RESPONDERS_NONCE).challenge(hello)


@given(st.integers(0, 8 * CHALLENGE_BYTES - 1))
def test_a_challenge_in_which_one_bit_differs_proves_nothing(bit: int) -> None:
    initiator = Initiator((NEW,), INITIATORS_NONCE)
    challenge = bytearray(Responder((NEW,), RESPONDERS_NONCE).challenge(initiator.hello))
    challenge[bit // 8] ^= 1 << bit % 8

    with pytest.raises(NotAPeer):
        initiator.proof(challenge)


@given(st.integers(0, 8 * PROOF_BYTES - 1))
def test_a_proof_in_which_one_bit_differs_proves_nothing(bit: int) -> None:
    initiator, responder = Initiator((NEW,), INITIATORS_NONCE), Responder((NEW,), RESPONDERS_NONCE)
    proof = bytearray(initiator.proof(responder.challenge(initiator.hello)))
    proof[bit // 8] ^= 1 << bit % 8

    with pytest.raises(NotAPeer):
        responder.check(proof)


def test_a_replayed_proof_is_rejected() -> None:
    initiator, responder = Initiator((NEW,), INITIATORS_NONCE), Responder((NEW,), RESPONDERS_NONCE)
    overheard = initiator.proof(responder.challenge(initiator.hello))
    later = Responder((NEW,), b"c" * NONCE_BYTES)
    later.challenge(initiator.hello)

    with pytest.raises(NotAPeer):
        later.check(overheard)


def test_a_replayed_challenge_is_rejected() -> None:
    overheard = Responder((NEW,), RESPONDERS_NONCE).challenge(Initiator((NEW,), INITIATORS_NONCE).hello)

    with pytest.raises(NotAPeer):
        Initiator((NEW,), b"c" * NONCE_BYTES).proof(overheard)


def test_an_agents_own_proof_sent_back_to_it_is_rejected() -> None:
    responder = Responder((NEW,), RESPONDERS_NONCE)
    challenge = responder.challenge(Initiator((NEW,), INITIATORS_NONCE).hello)

    with pytest.raises(NotAPeer):
        responder.check(challenge[-PROOF_BYTES:])


def test_no_secret_is_in_what_is_sent_or_shown() -> None:
    initiator, responder = Initiator((NEW, OLD), INITIATORS_NONCE), Responder((NEW, OLD), RESPONDERS_NONCE)
    challenge = responder.challenge(initiator.hello)
    sent = initiator.hello + challenge + initiator.proof(challenge)

    assert all(secret.value not in sent for secret in (NEW, OLD))
    assert repr(NEW) == "PeerSecret()"
