"""SCRAM against the examples of the RFCs, against a client of our own, and against any bytes."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.security.sasl import scram
from agent.security.sasl.scram import ScramExchange
from agent.security.sasl.steps import SaslRefused
from sequencer.security.credentials import ScramKeys, ScramMechanism

MECHANISMS = tuple(ScramMechanism)
RFC_7677_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_7677_NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
KEYS = scram.keys_of(
    ScramMechanism.SHA_256,
    scram.salted_password(ScramMechanism.SHA_256, "pencil", RFC_7677_SALT, 4096),
    RFC_7677_SALT,
    4096,
)
NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
NONCE = bytes(range(24))


class Client:
    """A SCRAM client that says what the test wants."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, header: str = "n,,") -> None:
        self.mechanism = mechanism
        self.password = password
        self.header = header
        self.hash = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r=clientnonce"

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, challenge: bytes, *, nonce: str | None = None, header: str | None = None) -> bytes:
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        binding = base64.b64encode((self.header if header is None else header).encode()).decode()
        unsigned = f"c={binding},r={nonce or fields['r']}"
        signed = f"{self.bare},{challenge.decode()},{unsigned}".encode()
        signature = hmac.digest(hashlib.new(self.hash, client_key).digest(), signed, self.hash)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
        self.expected = b"v=" + base64.b64encode(
            hmac.digest(hmac.digest(salted, b"Server Key", self.hash), signed, self.hash)
        )
        return f"{unsigned},p={proof}".encode()


def begun(client: Client, keys: ScramKeys = KEYS) -> tuple[ScramExchange, bytes]:
    exchange = ScramExchange(client.mechanism, NONCE)
    exchange.first(client.first())
    return exchange, exchange.challenge(keys)


def test_the_example_of_rfc_7677_is_answered_as_there(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = ScramExchange(ScramMechanism.SHA_256, NONCE)
    monkeypatch.setattr(exchange, "_own_nonce", RFC_7677_NONCE.removeprefix("rOprNGfwEbeRWgbNEkqO"))

    assert exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == "user"
    assert exchange.challenge(KEYS) == f"r={RFC_7677_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    final = f"c=biws,r={RFC_7677_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.final(final.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(MECHANISMS), NAME, NAME, st.sampled_from(["n,,", "y,,"]))
def test_any_user_with_the_right_password_gets_in(
    mechanism: ScramMechanism, user: str, password: str, header: str
) -> None:
    salt = b"salt"
    keys = scram.keys_of(mechanism, scram.salted_password(mechanism, password, salt, 4096), salt, 4096)
    client = Client(mechanism, user, password, header=header)
    exchange = ScramExchange(mechanism, NONCE)

    assert exchange.first(client.first()) == user
    final = client.final(exchange.challenge(keys))

    assert exchange.final(final) == client.expected


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(MECHANISMS), NAME)
def test_a_wrong_password_is_refused(mechanism: ScramMechanism, wrong: str) -> None:
    keys = scram.keys_of(mechanism, scram.salted_password(mechanism, "right", b"s", 4096), b"s", 4096)
    client = Client(mechanism, "ann", wrong if wrong != "right" else "other")
    exchange, challenge = begun(client, keys)

    with pytest.raises(SaslRefused, match="wrong"):
        exchange.final(client.final(challenge))


@settings(max_examples=300)
@given(
    st.one_of(st.binary(max_size=200), st.text(st.sampled_from("nyp=,arm\x0123C+/;tokenauth"), max_size=60))
)
def test_any_bytes_are_answered_or_refused(data: bytes | str) -> None:
    message = data if isinstance(data, bytes) else data.encode()
    exchange = ScramExchange(ScramMechanism.SHA_256, NONCE)
    try:
        exchange.first(message)
        exchange.challenge(KEYS)
        exchange.final(message)
    except SaslRefused:
        return
    raise AssertionError("nobody proves a password by chance")


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (f"n,,n=ann,r={'x' * 257}", "nonce"),
        (f"n,,n={'x' * 256},r=abc", "name"),
        (f"n,,n=ann,r=abc,e={'x' * 4_096}", "bytes"),
    ],
)
def test_an_exchange_keeps_nothing_long(first: str, reason: str) -> None:
    exchange = ScramExchange(ScramMechanism.SHA_256, NONCE)

    with pytest.raises(SaslRefused, match=reason):
        exchange.first(first.encode())
    assert exchange.user is None or len(exchange.user) < 256


def test_the_longest_name_and_nonce_are_taken() -> None:
    exchange = ScramExchange(ScramMechanism.SHA_256, NONCE)

    assert exchange.first(f"n,,n={'=2C' * 255},r={'x' * 256}".encode()) == "," * 255


@settings(max_examples=200)
@given(st.integers(0, 200), st.integers(1, 255))
def test_a_final_message_with_any_other_byte_is_refused(place: int, change: int) -> None:
    client = Client(ScramMechanism.SHA_256, "user", "pencil")
    exchange, challenge = begun(client)
    final = bytearray(client.final(challenge))
    final[place % len(final)] ^= change

    with pytest.raises(SaslRefused):
        exchange.final(bytes(final))


@pytest.mark.parametrize("length", range(100))
def test_a_truncated_final_message_is_refused(length: int) -> None:
    client = Client(ScramMechanism.SHA_256, "user", "pencil")
    exchange, challenge = begun(client)
    final = client.final(challenge)

    with pytest.raises(SaslRefused):
        exchange.final(final[: min(length, len(final) - 1)])


def test_a_recorded_login_is_refused_in_another_exchange() -> None:
    client = Client(ScramMechanism.SHA_256, "user", "pencil")
    first, challenge = begun(client)
    recorded = client.final(challenge)
    first.final(recorded)
    other = ScramExchange(ScramMechanism.SHA_256, bytes(24))
    other.first(client.first())
    other.challenge(KEYS)

    with pytest.raises(SaslRefused, match="another exchange"):
        other.final(recorded)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"p=tls-unique,,n=ann,r=abc", "channel binding"),
        (b"n,,n=ann,r=abc,tokenauth=true", "delegation token"),
        (b"n,a=bob,n=ann,r=abc", "another user"),
        (b"n,,m=must,n=ann,r=abc", "not SCRAM"),
        (b"n,,n=,r=abc", "no user"),
        (b"n,,n=a=b,r=abc", "escapes nothing"),
        (b"n,,n=a=2Db,r=abc", "escapes nothing"),
        (b"n,,n=ann,r=", "not SCRAM"),
        (b"n,,n=ann,r=\xc3\xbc", "not printable"),
        (b"n,,n=a\0b,r=abc", "no user"),
        (b"n,,n=\xff,r=abc", "UTF-8"),
        (b"n,,n=" + b"a" * 70_000 + b",r=abc", "more than"),
        (b"", "not SCRAM"),
    ],
)
def test_a_first_message_is_refused_with_the_reason(first: bytes, reason: str) -> None:
    with pytest.raises(SaslRefused, match=reason):
        ScramExchange(ScramMechanism.SHA_256, NONCE).first(first)


def test_a_client_that_changes_the_header_is_refused() -> None:
    client = Client(ScramMechanism.SHA_256, "user", "pencil", header="y,,")
    exchange, challenge = begun(client)

    with pytest.raises(SaslRefused, match="another header"):
        exchange.final(client.final(challenge, header="n,,"))


def test_a_client_may_ask_to_act_for_itself() -> None:
    client = Client(ScramMechanism.SHA_256, "user", "pencil", header="n,a=user,")
    exchange, challenge = begun(client)

    assert exchange.final(client.final(challenge)) == client.expected


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_stranger_gets_the_same_salt_each_time_and_another_than_others(mechanism: ScramMechanism) -> None:
    salts = {user: scram.decoy(mechanism, user, b"secret", 4096).salt for user in ("ann", "bob", "Ann")}

    assert len(set(salts.values())) == 3
    assert salts["ann"] == scram.decoy(mechanism, "ann", b"secret", 4096).salt
    assert salts["ann"] != scram.decoy(mechanism, "ann", b"other secret", 4096).salt
    assert all(len(salt) == len(scram.a_salt(bytes(range(64)))) for salt in salts.values())


def test_keys_do_not_show_in_a_repr() -> None:
    shown = repr(KEYS)

    for secret in (KEYS.salt, KEYS.stored_key, KEYS.server_key):
        assert repr(secret) not in shown
