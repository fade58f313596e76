"""OAUTHBEARER (RFC 7628, KIP-255): the client sends a signed token (JWT) that an identity provider gave it.

Promises:
- A token counts only if a key of the provider has signed it with an asymmetric algorithm of this key's type.
  So neither `none` nor a public key used as an HMAC secret gets in.
- Issuer, audience, times and the principal's claim are all checked. A token without an expiry is refused.
- Any bytes are a login or raise SaslRefused. No token appears in a `repr` or an error.

Pure: the caller has the keys and the clock.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt

from agent.security.sasl.steps import SaslRefused
from sequencer.security.credentials import can_be_user
from sequencer.tenants.tenant_names import prefix_of, tenant_of

INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
"""What a client whose token is refused gets. It answers with one byte, and then the login fails (RFC 7628
3.2.3).
"""
_LONGEST_MESSAGE: Final = 65_536
_MOST_KEYS: Final = 1_000
_MESSAGE: Final = re.compile(
    "n,(?:a=(?P<authzid>[^,]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01"
)
_BEARER: Final = re.compile(r"[Bb]earer +(?P<token>[A-Za-z0-9._~+/=\-]+) *")
_KEY_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""The algorithms of each type of key. All are asymmetric."""
_END_OF_TIME_S: Final = 253_402_300_800
"""The end of the year 9999."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class UnknownKey(SaslRefused):
    """No known key has the token's key id. The provider may have a new one."""


class BadKeySet(Exception):
    """A document is not a JSON Web Key Set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyingKey:
    public_key: Any
    algorithms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySet:
    """A provider's keys by their ids. `unnamed`: a key without an id, if it is the only key."""

    keys: Mapping[str, VerifyingKey]
    unnamed: VerifyingKey | None = None

    def of(self, key_id: str | None) -> VerifyingKey:
        """Raises UnknownKey."""
        if key_id is None:
            found = next(iter(self.keys.values())) if len(self.keys) == 1 else self.unnamed
        else:
            found = self.keys.get(key_id)
        if found is None:
            raise UnknownKey("no key of the identity provider has the token's key id")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say. `clock_skew_s`: how far the provider's clock may be from ours."""

    issuer: str
    audience: str
    principal_claim: str
    clock_skew_s: float
    tenant_claim: str = ""
    """Names the user's tenant. Empty: no token is of a tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogin:
    token: str = field(repr=False)
    authzid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHolder:
    user: str
    valid_s: float
    """How long the token is still valid, from `now_s` on."""


def read_key_set(document: bytes) -> KeySet:
    """Reads the keys for signatures (RFC 7517). Keys of other kinds are left out. Raises BadKeySet."""
    try:
        entries = json.loads(document)["keys"]
        named: dict[str, VerifyingKey] = {}
        unnamed: list[VerifyingKey] = []
        for entry in entries[:_MOST_KEYS]:
            key = _verifying_key(entry)
            if key is not None and isinstance(entry.get("kid"), str):
                named[entry["kid"]] = key
            elif key is not None:
                unnamed.append(key)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadKeySet(f"not a JSON Web Key Set ({type(error).__name__})") from error
    if not named and not unnamed:
        raise BadKeySet("the key set has no key for signatures of a supported type")
    return KeySet(keys=named, unnamed=unnamed[0] if len(unnamed) == 1 and not named else None)


def _verifying_key(entry: Mapping[str, Any]) -> VerifyingKey | None:
    kind = str(entry.get("kty"))
    if kind not in _KEY_TYPES or entry.get("use", "sig") != "sig" or "d" in entry:
        return None  # also a private key, which a provider must not publish
    try:
        key = jwt.PyJWK({name: value for name, value in entry.items() if name != "alg"})
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    # The curve of an elliptic key names the algorithm. An RSA key without `alg` goes with all of them.
    algorithms = _KEY_TYPES[kind] if kind == "RSA" else (key.algorithm_name,)
    if "alg" in entry:
        algorithms = tuple(name for name in algorithms if name == entry["alg"])
    is_known = bool(algorithms) and set(algorithms) <= set(_KEY_TYPES[kind])
    return VerifyingKey(public_key=key.key, algorithms=algorithms) if is_known else None


def read_token_login(message: bytes) -> TokenLogin:
    """Reads the client's first message. Raises SaslRefused."""
    if len(message) > _LONGEST_MESSAGE:
        raise SaslRefused(f"the client's message has more than {_LONGEST_MESSAGE} bytes")
    try:
        found = _MESSAGE.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise SaslRefused("the client's message is not OAUTHBEARER's")
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair)
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise SaslRefused("the client's message has no bearer token")
    authzid = found["authzid"] or None
    if authzid is not None and not can_be_user(authzid):
        raise SaslRefused("no user can have the name that the client asks to act for")
    return TokenLogin(token=bearer["token"], authzid=authzid)


def token_key_id(login: TokenLogin) -> str | None:
    """Returns the id of the key that the token says it is signed with. Raises SaslRefused."""
    key_id = _header(login.token).get("kid")
    if key_id is not None and not isinstance(key_id, str):
        raise SaslRefused("the token's key id is no text")
    return key_id


def check_token(login: TokenLogin, key: VerifyingKey, rules: TokenRules, now_s: float) -> TokenHolder:
    """Returns whom the token is for. `now_s` is in seconds since 1970. Raises SaslRefused."""
    algorithm = _header(login.token).get("alg")
    if algorithm not in key.algorithms:
        raise SaslRefused("the token's algorithm is not one of its key's")
    try:
        claims = jwt.decode(
            login.token,
            key.public_key,
            algorithms=[str(algorithm)],
            audience=rules.audience,
            issuer=rules.issuer,
            options={
                "require": ["exp", "iss", "aud"],
                "verify_exp": False,  # below, with the caller's clock
                "verify_nbf": False,
                "verify_iat": False,
                "verify_sub": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise SaslRefused(f"the token is refused: {type(error).__name__}") from None
    user = claims.get(rules.principal_claim)
    if not isinstance(user, str) or not can_be_user(user) or _CONTROL.search(user):
        raise SaslRefused(f"the token's claim {rules.principal_claim} names no user")
    ends_s = _time(claims, "exp", user)
    if now_s >= ends_s + rules.clock_skew_s:
        raise SaslRefused("the token has expired", user)
    for claim in ("nbf", "iat"):
        if claim in claims and _time(claims, claim, user) > now_s + rules.clock_skew_s:
            raise SaslRefused("the token is of the future", user)
    if login.authzid is not None and login.authzid != user:
        raise SaslRefused("the client asks to act for another user", user)
    return TokenHolder(
        user=_of_tenant(user, claims, rules), valid_s=max(0.0, ends_s + rules.clock_skew_s - now_s)
    )


def _of_tenant(user: str, claims: Mapping[str, Any], rules: TokenRules) -> str:
    """Returns the user's name in the cluster. Only the claim says that a user is of a tenant."""
    tenant = claims.get(rules.tenant_claim) if rules.tenant_claim else None
    if tenant is None:
        if tenant_of(user) is not None:
            raise SaslRefused("the name has the form of a tenant's, and no claim names the tenant", user)
        return user
    full = prefix_of(tenant) + user if isinstance(tenant, str) else ""
    if tenant_of(full) != tenant or not can_be_user(full):
        raise SaslRefused(f"the token's claim {rules.tenant_claim} names no tenant", user)
    return full


def _header(token: str) -> Mapping[str, Any]:
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise SaslRefused(f"the token cannot be read: {type(error).__name__}") from None


def _time(claims: Mapping[str, Any], claim: str, user: str) -> float:
    value = claims[claim]
    # Comparisons also hold for integers that no float can have, and fail for NaN.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _END_OF_TIME_S:
        raise SaslRefused(f"the token's claim {claim} is no time", user)
    return float(value)
