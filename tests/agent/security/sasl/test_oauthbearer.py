"""Tokens of an identity provider: which are taken, and every way to forge one that we know."""

import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.security.sasl.oauthbearer import (
    BadKeySet,
    KeySet,
    TokenHolder,
    TokenRules,
    UnknownKey,
    check_token,
    read_key_set,
    read_token_login,
    token_key_id,
)
from agent.security.sasl.steps import SaslRefused
from tests.agent.security.logins.tokens import (
    NOW_S,
    RSA_KEY,
    RULES,
    a_key_set,
    a_login,
    a_message,
    a_token,
    claims,
)

KEYS = read_key_set(a_key_set({"one": RSA_KEY}))


def checked(token: str, keys: KeySet = KEYS, rules: TokenRules = RULES, now_s: float = NOW_S) -> TokenHolder:
    login = read_token_login(a_message(token))
    return check_token(login, keys.of(token_key_id(login)), rules, now_s)


def test_a_good_token_names_its_user_and_how_long_it_is_valid() -> None:
    assert checked(a_token()) == TokenHolder(user="ann", valid_s=300.0 + RULES.clock_skew_s)


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_an_rsa_key_without_an_algorithm_takes_all_of_its_type(algorithm: str) -> None:
    assert checked(a_token(algorithm=algorithm)).user == "ann"


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (ec.generate_private_key(ec.SECP521R1()), "ES512"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
    ],
)
def test_elliptic_keys_are_taken_with_their_curves_algorithm(key: Any, algorithm: str) -> None:
    keys = read_key_set(a_key_set({"one": key}))

    assert checked(a_token(key=key, algorithm=algorithm), keys).user == "ann"


def _forged(header: Mapping[str, Any], body: Mapping[str, Any], secret: bytes | None) -> str:
    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = part(json.dumps(header).encode()) + b"." + part(json.dumps(body).encode())
    signature = b"" if secret is None else hmac.digest(secret, signed, "sha256")
    return (signed + b"." + part(signature)).decode()


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
def test_a_token_without_a_signature_is_refused(algorithm: str) -> None:
    with pytest.raises(SaslRefused):
        checked(_forged({"alg": algorithm, "kid": "one", "typ": "JWT"}, claims(), None))


@pytest.mark.parametrize("form", ["pem", "pkcs1", "der", "jwk"])
def test_a_public_key_is_no_hmac_secret(form: str) -> None:
    public = RSA_KEY.public_key()
    encodings = {
        "pem": (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        "pkcs1": (serialization.Encoding.PEM, serialization.PublicFormat.PKCS1),
        "der": (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
    }
    secret = a_key_set({"one": RSA_KEY}) if form == "jwk" else public.public_bytes(*encodings[form])

    with pytest.raises(SaslRefused, match="algorithm"):
        checked(_forged({"alg": "HS256", "kid": "one"}, claims(), secret))


def test_a_token_that_brings_its_own_key_is_refused() -> None:
    theirs = rsa.generate_private_key(65_537, 2048)
    brought = json.loads(a_key_set({"one": theirs}))["keys"][0]
    token = jwt.encode(claims(), theirs, algorithm="RS256", headers={"kid": "one", "jwk": brought})

    with pytest.raises(SaslRefused, match="Signature"):
        checked(token)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": NOW_S - 31}, "expired"),
        ({"exp": None}, "MissingRequiredClaim"),
        ({"exp": "soon"}, "no time|Decode"),
        ({"exp": True}, "no time"),
        ({"exp": 1e400}, "no time|Decode"),
        ({"exp": 10**400}, "no time"),
        ({"exp": 253_402_300_800}, "no time"),
        ({"iat": 10**400}, "no time"),
        ({"nbf": -(10**400)}, "no time"),
        ({"nbf": NOW_S + 31}, "future"),
        ({"iat": NOW_S + 31}, "future"),
        ({"nbf": "soon"}, "no time|Decode"),
        ({"iss": "https://other"}, "InvalidIssuer"),
        ({"iss": None}, "MissingRequiredClaim"),
        ({"aud": "other"}, "InvalidAudience"),
        ({"aud": None}, "MissingRequiredClaim"),
        ({"aud": ["x", "y"]}, "InvalidAudience"),
        ({"sub": None}, "names no user"),
        ({"sub": ""}, "names no user"),
        ({"sub": 7}, "names no user"),
        ({"sub": ["ann"]}, "names no user"),
        ({"sub": "x" * 256}, "names no user"),
        ({"sub": "ann\nroot"}, "names no user"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(SaslRefused, match=reason):
        checked(a_token(**changed))


@pytest.mark.parametrize(
    "changed", [{"exp": NOW_S - 29}, {"nbf": NOW_S + 29}, {"iat": NOW_S + 29}, {"aud": ["x", RULES.audience]}]
)
def test_clocks_may_differ_and_a_token_may_have_several_audiences(changed: dict[str, Any]) -> None:
    assert checked(a_token(**changed)).user == "ann"


def test_a_claim_of_ones_choice_names_the_user() -> None:
    rules = TokenRules(
        issuer=RULES.issuer, audience=RULES.audience, principal_claim="client_id", clock_skew_s=0
    )

    assert checked(a_token(client_id="service"), rules=rules).user == "service"


def test_only_the_claim_of_tenants_makes_a_user_one_of_a_tenant() -> None:
    rules = replace(RULES, tenant_claim="org")

    assert checked(a_token(org="acme"), rules=rules).user == "acme~ann"
    assert checked(a_token(), rules=rules).user == "ann"
    assert checked(a_token(org="acme")).user == "ann"
    for wrong in ("acme~beta", "ACME", "", "../acme", 7):
        with pytest.raises(SaslRefused, match="names no tenant"):
            checked(a_token(org=wrong), rules=rules)
    for one in (rules, RULES):
        with pytest.raises(SaslRefused, match="no claim names the tenant"):
            checked(a_token(sub="acme~ann"), rules=one)


def test_a_client_may_act_for_nobody_else() -> None:
    login = read_token_login(a_message(a_token(), authzid="bob"))

    with pytest.raises(SaslRefused, match="another user"):
        check_token(login, KEYS.of("one"), RULES, NOW_S)
    assert check_token(read_token_login(a_message(a_token(), authzid="ann")), KEYS.of("one"), RULES, NOW_S)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2_000), st.sampled_from("ABCxyz019-_."))
def test_a_token_with_any_other_character_is_refused(place: int, character: str) -> None:
    token = a_token()
    place %= len(token) - 2  # the last character has bits that mean nothing
    changed = token[:place] + character + token[place + 1 :]

    if changed != token:
        with pytest.raises(SaslRefused):
            checked(changed)


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=100), st.text(st.sampled_from("n,a=\x01uthBer tok.")).map(str.encode)))
def test_any_bytes_are_a_login_or_refused(message: bytes) -> None:
    with contextlib.suppress(SaslRefused):
        login = read_token_login(message)
        check_token(login, KEYS.of(token_key_id(login)), RULES, NOW_S)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda one: (
            st.lists(one, max_size=3)
            | st.dictionaries(st.sampled_from(["keys", "kty", "kid", "n", "e", "crv", "x"]), one, max_size=4)
        ),
    )
)
def test_any_document_is_a_key_set_or_refused(document: Any) -> None:
    with contextlib.suppress(BadKeySet):
        read_key_set(json.dumps({"keys": document}).encode())


def test_secret_and_private_keys_are_left_out_of_a_key_set() -> None:
    oct_key = {
        "kty": "oct",
        "kid": "one",
        "k": base64.urlsafe_b64encode(hashlib.sha256(b"").digest()).decode(),
    }
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY)) | {"kid": "two"}
    for encryption in (oct_key, private, json.loads(a_key_set({"x": RSA_KEY}))["keys"][0] | {"use": "enc"}):
        with pytest.raises(BadKeySet):
            read_key_set(json.dumps({"keys": [encryption]}).encode())


def test_a_token_without_a_key_id_is_taken_only_if_there_is_one_key() -> None:
    token = a_token(key_id=None)
    two = read_key_set(a_key_set({"one": RSA_KEY, "two": rsa.generate_private_key(65_537, 2048)}))

    assert checked(token).user == "ann"
    with pytest.raises(UnknownKey):
        checked(token, two)


def test_no_token_shows_in_a_repr_or_an_error() -> None:
    token = a_token(sub=7)

    assert token not in repr(a_login(token))
    with pytest.raises(SaslRefused) as refused:
        checked(token)
    assert token.split(".")[2] not in str(refused.value)
