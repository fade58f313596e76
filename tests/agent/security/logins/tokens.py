"""Tokens of an identity provider of tests, and its keys."""

import json
from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from agent.security.sasl.oauthbearer import TokenLogin, TokenRules, read_token_login

RSA_KEY = rsa.generate_private_key(65_537, 2048)
NOW_S = 1_800_000_000
RULES = TokenRules(issuer="https://provider", audience="tidelog", principal_claim="sub", clock_skew_s=30.0)


def claims(now_s: float = NOW_S, **changed: Any) -> dict[str, Any]:
    """The claims of a good token, changed. None: without it."""
    good = {"iss": RULES.issuer, "aud": RULES.audience, "sub": "ann", "iat": now_s, "exp": now_s + 300}
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def a_token(
    *,
    key: Any = RSA_KEY,
    key_id: str | None = "one",
    algorithm: str = "RS256",
    now_s: float = NOW_S,
    **changed: Any,
) -> str:
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(claims(now_s, **changed), key, algorithm=algorithm, headers=headers)


def a_key_set(keys: Mapping[str, Any]) -> bytes:
    """The JSON Web Key Set of private keys' public halves."""
    entries = []
    for key_id, key in keys.items():
        makers: dict[type, Any] = {
            rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
            ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
            ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
        }
        [maker] = [maker for kind, maker in makers.items() if isinstance(key, kind)]
        entries.append({**json.loads(maker.to_jwk(key.public_key())), "kid": key_id})
        entries[-1].pop("key_ops", None)
    return json.dumps({"keys": entries}).encode()


def a_message(token: str, authzid: str = "") -> bytes:
    return f"n,{f'a={authzid}' if authzid else ''},\x01auth=Bearer {token}\x01\x01".encode()


def a_login(token: str) -> TokenLogin:
    return read_token_login(a_message(token))
