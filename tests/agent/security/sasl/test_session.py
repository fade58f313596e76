"""What a connection may ask before, during and after its login."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.security.principal import Principal
from agent.security.sasl.session import Handshake, SaslSession

ANN, BOB = Principal("ann"), Principal("bob")
METADATA, HANDSHAKE, VERSIONS, AUTHENTICATE = 3, 17, 18, 36
EXCHANGE = object()


def a_session(max_session_s: float | None = None) -> SaslSession:
    return SaslSession(("PLAIN", "SCRAM-SHA-256"), max_session_s)


def an_open_one(max_session_s: float | None = None, token_s: float | None = None) -> SaslSession:
    session = a_session(max_session_s)
    assert session.handshake("PLAIN", EXCHANGE, 0.0, raw=False) is Handshake.BEGUN
    assert session.succeed(ANN, None, token_s, 0.0)
    return session


@given(st.integers(-1, 100))
def test_only_versions_and_the_handshake_come_before_a_login(api_key: int) -> None:
    assert (a_session().refusal(api_key, 0.0) is None) == (api_key in (HANDSHAKE, VERSIONS))


@given(st.integers(-1, 100))
def test_only_sasl_messages_come_during_a_login(api_key: int) -> None:
    session = a_session()
    session.handshake("PLAIN", EXCHANGE, 0.0, raw=False)

    assert (session.refusal(api_key, 0.0) is None) == (api_key == AUTHENTICATE)


def test_a_mechanism_that_is_not_offered_ends_the_connection() -> None:
    session = a_session()

    assert session.handshake("GSSAPI", None, 0.0, raw=False) is Handshake.UNSUPPORTED
    assert session.refusal(VERSIONS, 0.0) is not None


@pytest.mark.parametrize(
    ("max_session_s", "token_s", "ends_s"),
    [(None, None, None), (60.0, None, 60.0), (None, 30.0, 30.0), (60.0, 30.0, 30.0), (60.0, 90.0, 60.0)],
)
def test_a_session_ends_with_its_limit_or_its_token(
    max_session_s: float | None, token_s: float | None, ends_s: float | None
) -> None:
    session = an_open_one(max_session_s, token_s)

    assert session.ends_s == ends_s
    assert session.refusal(METADATA, 29.0) is None
    assert (session.refusal(METADATA, 1e9) is None) == (ends_s is None)
    assert session.refusal(HANDSHAKE, 1e9) is None


def test_a_new_login_renews_the_session() -> None:
    session = an_open_one(60.0)

    assert session.handshake("PLAIN", EXCHANGE, 50.0, raw=False) is Handshake.BEGUN
    assert session.is_authenticated
    assert session.refusal(METADATA, 50.0) is not None
    assert session.succeed(ANN, None, None, 51.0)
    assert session.refusal(METADATA, 110.0) is None
    assert session.refusal(METADATA, 112.0) is not None


def test_a_new_login_as_another_principal_ends_the_connection() -> None:
    session = an_open_one()
    session.handshake("PLAIN", EXCHANGE, 50.0, raw=False)

    assert not session.succeed(BOB, None, None, 51.0)
    assert session.is_failed
    assert not session.is_authenticated


def test_a_new_login_with_another_mechanism_ends_the_connection() -> None:
    session = an_open_one()

    assert session.handshake("SCRAM-SHA-256", EXCHANGE, 50.0, raw=False) is Handshake.OTHER_MECHANISM
    assert session.is_failed


def test_a_second_login_within_a_second_is_out_of_turn() -> None:
    session = an_open_one()

    assert session.handshake("PLAIN", EXCHANGE, 0.5, raw=False) is Handshake.OUT_OF_TURN
    assert session.refusal(METADATA, 0.5) is None


class AnyOrder(RuleBasedStateMachine):
    """Whatever a client sends, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.session = a_session(10.0)
        self.now_s = 0.0
        self.proofs = 0

    @rule(passed_s=st.floats(0, 20))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule(mechanism=st.sampled_from(["PLAIN", "SCRAM-SHA-256", "GSSAPI"]), raw=st.booleans())
    def shake_hands(self, mechanism: str, raw: bool) -> None:
        if self.session.refusal(HANDSHAKE, self.now_s) is None:
            exchange = None if mechanism == "GSSAPI" else EXCHANGE
            self.session.handshake(mechanism, exchange, self.now_s, raw=raw)

    @rule(principal=st.sampled_from([ANN, BOB]), is_proven=st.booleans())
    def answer(self, principal: Principal, is_proven: bool) -> None:
        if self.session.refusal(AUTHENTICATE, self.now_s) is None and self.session.exchange is not None:
            if is_proven:
                self.proofs += self.session.succeed(principal, None, None, self.now_s)
            else:
                self.session.fail()

    @invariant()
    def nothing_is_answered_without_a_proof(self) -> None:
        if self.session.refusal(METADATA, self.now_s) is None:
            assert self.proofs
            assert self.session.is_authenticated
            assert self.session.ends_s is not None
            assert self.now_s <= self.session.ends_s


TestAnyOrder = AnyOrder.TestCase
