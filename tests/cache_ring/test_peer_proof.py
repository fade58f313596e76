"""The proof between two agents: who knows a common secret is believed, and no one else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_ring.peers.peer_proof import CHALLENGE_BYTES, HELLO_BYTES, NONCE_BYTES, PROOF_BYTES, Asked, Asker, NotAPeer
from sequencer.cluster.agents import PeerSecret

OLD, NEW, OTHER = (PeerSecret(value=bytes([number]) * 32) for number in (1, 2, 3))
ASKERS_NONCE, ASKEDS_NONCE = b"a" * NONCE_BYTES, b"b" * NONCE_BYTES
EITHER = st.sampled_from([(), (OLD,), (NEW,), (OTHER,), (NEW, OLD), (OTHER, NEW)])


def prove(of_asker: tuple[PeerSecret, ...], of_asked: tuple[PeerSecret, ...]) -> None:
    asker, asked = Asker(of_asker, ASKERS_NONCE), Asked(of_asked, ASKEDS_NONCE)
    challenge = asked.challenge(asker.hello)
    proof = asker.proof(challenge)
    asked.check(proof)
    assert (len(asker.hello), len(challenge), len(proof)) == (HELLO_BYTES, CHALLENGE_BYTES, PROOF_BYTES)


@given(of_asker=EITHER, of_asked=EITHER)
def test_two_agents_believe_each_other_exactly_if_they_know_a_common_secret(
    of_asker: tuple[PeerSecret, ...], of_asked: tuple[PeerSecret, ...]
) -> None:
    if set(of_asker) & set(of_asked):
        prove(of_asker, of_asked)
    else:
        with pytest.raises(NotAPeer):
            prove(of_asker, of_asked)


def test_the_newest_common_secret_is_used() -> None:
    challenge = Asked((NEW, OLD), ASKEDS_NONCE).challenge(Asker((NEW, OLD), ASKERS_NONCE).hello)

    with pytest.raises(NotAPeer, match="does not know"):
        Asker((OLD,), ASKERS_NONCE).proof(challenge)


@given(st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES))
def test_bytes_of_a_stranger_are_no_hello(hello: bytes) -> None:
    with pytest.raises(NotAPeer):
        Asked((NEW, OLD), ASKEDS_NONCE).challenge(hello)


@given(st.integers(0, 8 * CHALLENGE_BYTES - 1))
def test_a_challenge_in_which_one_bit_differs_proves_nothing(bit: int) -> None:
    asker = Asker((NEW,), ASKERS_NONCE)
    challenge = bytearray(Asked((NEW,), ASKEDS_NONCE).challenge(asker.hello))
    challenge[bit // 8] ^= 1 << bit % 8

    with pytest.raises(NotAPeer):
        asker.proof(challenge)


@given(st.integers(0, 8 * PROOF_BYTES - 1))
def test_a_proof_in_which_one_bit_differs_proves_nothing(bit: int) -> None:
    asker, asked = Asker((NEW,), ASKERS_NONCE), Asked((NEW,), ASKEDS_NONCE)
    proof = bytearray(asker.proof(asked.challenge(asker.hello)))
    proof[bit // 8] ^= 1 << bit % 8

    with pytest.raises(NotAPeer):
        asked.check(proof)


def test_a_proof_that_was_overheard_is_not_believed_again() -> None:
    asker, asked = Asker((NEW,), ASKERS_NONCE), Asked((NEW,), ASKEDS_NONCE)
    overheard = asker.proof(asked.challenge(asker.hello))
    later = Asked((NEW,), b"c" * NONCE_BYTES)
    later.challenge(asker.hello)

    with pytest.raises(NotAPeer):
        later.check(overheard)


def test_a_challenge_that_was_overheard_is_not_believed_again() -> None:
    overheard = Asked((NEW,), ASKEDS_NONCE).challenge(Asker((NEW,), ASKERS_NONCE).hello)

    with pytest.raises(NotAPeer):
        Asker((NEW,), b"c" * NONCE_BYTES).proof(overheard)


def test_an_agents_own_proof_sent_back_to_it_proves_nothing() -> None:
    asked = Asked((NEW,), ASKEDS_NONCE)
    challenge = asked.challenge(Asker((NEW,), ASKERS_NONCE).hello)

    with pytest.raises(NotAPeer):
        asked.check(challenge[-PROOF_BYTES:])


def test_no_secret_is_in_what_is_sent_or_shown() -> None:
    asker, asked = Asker((NEW, OLD), ASKERS_NONCE), Asked((NEW, OLD), ASKEDS_NONCE)
    challenge = asked.challenge(asker.hello)
    sent = asker.hello + challenge + asker.proof(challenge)

    assert all(secret.value not in sent for secret in (NEW, OLD))
    assert repr(NEW) == "PeerSecret()"
