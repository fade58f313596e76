"""Checks the passwords of PLAIN against SCRAM's credentials, so that no other form of a password is stored.

A check takes milliseconds of CPU on purpose. Promises:
- Checks run in `sasl_password_threads` threads, not on the event loop. Hosts take turns by the CPU that they
  used.
- The last correct password of a user is remembered, for its version of the credential, as a digest under a
  key that only this process has. The same password then needs no thread. A wrong one always does.
- A user that does not exist takes as long as one whose credential is of SCRAM-SHA-512.
"""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from agent.security.sasl import scram
from agent.security.sasl.plain import PlainLogin
from agent.security.sasl.settings import SaslSettings
from sequencer.security.credentials import Credential, ScramKeys, ScramMechanism
from storage.threads import Threads

_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A user's last correct password, as a digest, for one version of its credential."""

    change: int
    mechanism: ScramMechanism
    digest: bytes = field(repr=False)


class Passwords:
    def __init__(self, settings: SaslSettings) -> None:
        self._settings = settings
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._verified: OrderedDict[str, Verified] = OrderedDict()
        self._threads = Threads("passwords", settings.sasl_password_threads)
        self.checks = 0
        """Passwords that took a thread."""

    def close(self) -> None:
        self._threads.close()

    async def is_right(
        self, login: PlainLogin, credential: Credential | None, decoy: ScramKeys, host: str
    ) -> bool:
        """`credential`: the user's, None if there is none; the password is then compared with `decoy`."""
        mechanism = ScramMechanism.SHA_512 if credential is None else credential.key.mechanism
        digest = hmac.digest(self._key, login.password, "sha256")
        if credential is not None and self._knows(login.user, credential, digest):
            return True
        keys = decoy if credential is None else credential.keys
        self.checks += 1
        check = partial(scram.proves, mechanism, login.password, keys)
        is_right = await self._threads.run_for(host, check)
        if is_right and credential is not None:
            self._remember(login.user, Verified(change=credential.change, mechanism=mechanism, digest=digest))
        return is_right and credential is not None

    def _knows(self, user: str, credential: Credential, digest: bytes) -> bool:
        known = self._verified.get(user)
        return (
            known is not None
            and known.change == credential.change
            and known.mechanism is credential.key.mechanism
            and hmac.compare_digest(known.digest, digest)
        )

    def _remember(self, user: str, verified: Verified) -> None:
        self._verified[user] = verified
        self._verified.move_to_end(user)
        while len(self._verified) > self._settings.sasl_verified_passwords:
            self._verified.popitem(last=False)


def password_credential(credentials: tuple[Credential, ...]) -> Credential | None:
    """Returns the credential that a user's password is compared with: the one that was set last."""
    return max(credentials, key=lambda one: (one.change, one.key.mechanism), default=None)
