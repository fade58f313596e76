"""A login of each SASL mechanism: runs the mechanism's machine and finds what it needs.

Promises:
- A step returns what to send, or raises SaslRefused or CannotCheck. The steps of a login come one after the
  other.
- When a step returns `Proven`, this agent knows of no later change or deletion of the credential. A caller
  that opens the session before it awaits anything hears of each deletion from then on.
"""

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from agent.security.logins.known_credentials import KnownCredentials
from agent.security.logins.passwords import Passwords, password_credential
from agent.security.sasl import scram
from agent.security.sasl.plain import read_plain
from agent.security.sasl.steps import CannotCheck, Challenge, Proven, SaslRefused
from sequencer.database.database import SequencerUnavailable
from sequencer.security.credentials import Credential, ScramMechanism

if TYPE_CHECKING:
    from agent.security.logins.token_keys import TokenKeys
    from agent.security.sasl.oauthbearer import TokenRules

_WRONG: Final = "the password is wrong, or there is no such user"


class Login(Protocol):
    async def step(self, message: bytes) -> Challenge | Proven:
        """Takes the client's next message. Raises SaslRefused, CannotCheck."""
        ...


class ScramLogin:
    def __init__(
        self, mechanism: ScramMechanism, known: KnownCredentials, decoy_iterations: int, prefix: str = ""
    ) -> None:
        """`prefix`: of the tenant that the server's name names."""
        self._prefix = prefix
        self._mechanism = mechanism
        self._known = known
        self._decoy_iterations = decoy_iterations
        self._exchange = scram.ScramExchange(mechanism, secrets.token_bytes(scram.NONCE_BYTES))
        self._credential: Credential | None = None

    async def step(self, message: bytes) -> Challenge | Proven:
        exchange = self._exchange
        if exchange.user is None:
            user = self._prefix + exchange.first(message)
            try:
                found, decoy_key = await self._known.of(user), await self._known.decoy_key()
            except SequencerUnavailable as error:
                raise CannotCheck(str(error)) from error
            credential = next((one for one in found if one.key.mechanism is self._mechanism), None)
            self._credential = credential
            decoy = scram.decoy(self._mechanism, user, decoy_key, self._decoy_iterations)
            return Challenge(data=exchange.challenge(decoy if credential is None else credential.keys))
        data = exchange.final(message)
        if self._credential is None:
            raise SaslRefused(_WRONG, self._prefix + exchange.user)
        await _require_unchanged(self._known, self._credential)
        return Proven(user=self._prefix + exchange.user, data=data, credential=self._credential.key)


class PasswordLogin:
    def __init__(
        self,
        known: KnownCredentials,
        passwords: Passwords,
        decoy_iterations: int,
        host: str,
        prefix: str = "",
    ) -> None:
        self._prefix = prefix
        self._known = known
        self._passwords = passwords
        self._decoy_iterations = decoy_iterations
        self._host = host

    async def step(self, message: bytes) -> Challenge | Proven:
        login = read_plain(message)
        login = replace(login, user=self._prefix + login.user)
        try:
            found, decoy_key = await self._known.of(login.user), await self._known.decoy_key()
        except SequencerUnavailable as error:
            raise CannotCheck(str(error)) from error
        credential = password_credential(found)
        decoy = scram.decoy(ScramMechanism.SHA_512, login.user, decoy_key, self._decoy_iterations)
        if not await self._passwords.is_right(login, credential, decoy, self._host) or credential is None:
            raise SaslRefused(_WRONG, login.user)
        await _require_unchanged(self._known, credential)
        return Proven(user=login.user, credential=credential.key)


class TokenLogin:
    def __init__(self, keys: "TokenKeys", rules: "TokenRules", prefix: str = "") -> None:
        self._prefix = prefix
        self._keys = keys
        self._rules = rules
        self._refused: SaslRefused | None = None

    async def step(self, message: bytes) -> Challenge | Proven:
        # Imports cryptography, 0.1 s that an agent without OAUTHBEARER does not need.
        from agent.security.sasl.oauthbearer import (
            INVALID_TOKEN,
            check_token,
            read_token_login,
            token_key_id,
        )

        if self._refused is not None:
            raise self._refused
        login = read_token_login(message)
        try:
            key = await self._keys.key(token_key_id(login))
            holder = check_token(login, key, self._rules, time.time())
            if not holder.user.startswith(self._prefix):
                raise SaslRefused("the token is not of the tenant that the server's name names", holder.user)
        except SaslRefused as refused:
            self._refused = refused
            return Challenge(data=INVALID_TOKEN)
        return Proven(user=holder.user, token_s=holder.valid_s)


async def _require_unchanged(known: KnownCredentials, credential: Credential) -> None:
    """The client may have taken its time to prove itself. Raises SaslRefused, CannotCheck."""
    try:
        is_unchanged = await known.has(credential)
    except SequencerUnavailable as error:
        raise CannotCheck(str(error)) from error
    if not is_unchanged:
        raise SaslRefused("the credential was changed or deleted during the login", credential.key.user)
