"""Logins of the HTTP side: each request proves its user by Basic, by a provider's token, or by a token of the
Iceberg catalog (docs/security.md#http).

Promises:
- A request gets a user or raises SaslRefused, CannotCheck or TooManyFailures. The client of a refused one
  learns neither whether the user exists nor what was wrong.
- A user of a tenant that is not known is refused.
- A failed login waits as one by SASL does, and counts with those of its host.
- While `_MOST_OF_USER` failed ones of a user name and a host wait, no further password of that name is looked
  at from there. So guesses of a password have a rate, and other users of the host (behind one NAT) log in.
- While `_MOST_OF_HOST` of a host wait, only names that have logged in from there are looked at.
- Both also hold for logins that come at once: of a name `_MOST_OF_USER` passwords are looked at at a time,
  and of a host's names that have not logged in `_AT_ONCE_OF_HOST`. The others wait for their turn.
- A token that counts is never refused for others' failures: it cannot be guessed.
- A token of the catalog counts on each agent of the cluster, until it expires or its credential is changed or
  deleted.

The catalog's tokens are no JWTs, so none can be taken for a provider's, and no header names an algorithm.
Their key is derived from a secret in Postgres.
"""

import asyncio
import base64
import binascii
import contextlib
import hmac
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import unquote_plus
from weakref import WeakValueDictionary

from agent.client_network import network_of
from agent.security.acls.authorizer import Authorizer, Rights
from agent.security.logins.authentication import Authentication
from agent.security.principal import Principal
from agent.security.sasl.settings import OAUTHBEARER, PLAIN
from agent.security.sasl.steps import CannotCheck, Challenge, Proven, SaslRefused
from sequencer.database.database import SequencerUnavailable
from sequencer.security.credentials import Credential, CredentialKey
from sequencer.tenants.tenant_names import tenant_of

_PREFIX: Final = b"tidelog."
_PURPOSE: Final = b"tokens of the Iceberg catalog"
_LONGEST_HEADER: Final = 16_384
_MOST_OF_USER: Final = 4
_MOST_OF_HOST: Final = 64
_AT_ONCE_OF_HOST: Final = 8
_MOST_SEEN: Final = 10_000
_NO_NAME: Final = b""
"""Of headers that cannot be read. Such logins count together."""
_LONGEST_RENEWED_S: Final = 86_400
"""From the login with a password on. A stolen token cannot be renewed for longer."""


class TooManyFailures(Exception):
    """Failed logins of this user name or host wait for their answers. The next one gets none."""


class HttpLogins:
    def __init__(
        self,
        authentication: Authentication,
        authorizer: Authorizer,
        wall_clock: Callable[[], float],
        is_tenant: Callable[[str], bool],
    ) -> None:
        """`wall_clock`: seconds since 1970. `is_tenant`: returns whether there is a tenant of this name."""
        self._is_tenant = is_tenant
        self._authentication = authentication
        self._authorizer = authorizer
        self._wall_clock = wall_clock
        self._of_host: Counter[str] = Counter()
        """Failed logins that wait for their answers."""
        self._of_user: Counter[tuple[str, bytes]] = Counter()
        self._seen: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """Hosts and users whose password was right, the last ones."""
        self._turns: WeakValueDictionary[tuple[str, bytes | None], asyncio.Semaphore] = WeakValueDictionary()
        """By host and user, and by host alone, while logins of them are looked at."""

    @property
    def takes_passwords(self) -> bool:
        return any(name != OAUTHBEARER for name in self._authentication.settings.mechanisms)

    async def rights(self, authorization: bytes, host: str) -> Rights:
        """Returns the rights of the user that the header `Authorization` proves."""
        user, login = self._login_of(authorization, host)
        proven = await self._guarded(login, host, user)
        return self._authorizer.rights(Principal(proven.user), host)

    async def exchange(self, user: bytes, password: bytes, host: str) -> tuple[str, int]:
        """Returns a token for a user's password, and its life in seconds."""
        login = self._by_password(b"\0".join((b"", user, password)), host)
        proven = await self._guarded(login, host, user)
        return await self._token_of(proven, int(self._wall_clock()))

    async def refresh(self, token: bytes, host: str) -> tuple[str, int]:
        """Returns a new token for one that still counts."""
        proven = await self._guarded(self._by_own_token(token), host, None)
        return await self._token_of(proven, _began_s(token))

    async def _guarded(self, login: Coroutine[Any, Any, Proven], host: str, user: bytes | None) -> Proven:
        """`user`: whose password it is, None for a token."""
        network = network_of(host)
        try:
            proven = await (login if user is None else self._in_turn(login, network, user))
            tenant = tenant_of(proven.user)
            if tenant is not None and not self._is_tenant(tenant):
                raise SaslRefused(f"there is no tenant {tenant}", proven.user)
            if user is not None:
                self._note_seen(network, user)
            self._authentication.note_http_success(host, proven.user)
            return proven
        except SaslRefused as refused:
            delay_s = self._authentication.note_http_failure(host, refused)
            if user is None and self._of_host[network] >= _MOST_OF_HOST:
                raise TooManyFailures from None
            await self._wait(network, _NO_NAME if user is None else user, delay_s)
            raise
        except SequencerUnavailable as error:
            raise CannotCheck(str(error)) from error

    async def _in_turn(self, login: Coroutine[Any, Any, Proven], host: str, user: bytes) -> Proven:
        """Awaits the login of a password when its turn has come. Raises TooManyFailures."""
        try:
            async with contextlib.AsyncExitStack() as turns:
                if (host, user) not in self._seen:
                    await self._take_turn(turns, host, user, (host, None), _AT_ONCE_OF_HOST)
                await self._take_turn(turns, host, user, (host, user), _MOST_OF_USER)
                return await login
        finally:
            login.close()

    async def _take_turn(
        self,
        turns: contextlib.AsyncExitStack,
        host: str,
        user: bytes,
        whose: tuple[str, bytes | None],
        most: int,
    ) -> None:
        if not self._is_full(host, user):
            await turns.enter_async_context(self._turns.setdefault(whose, asyncio.Semaphore(most)))
        if self._is_full(host, user):  # those whose turn it was before have failed
            raise TooManyFailures

    def _is_full(self, host: str, user: bytes) -> bool:
        return self._of_user[host, user] >= _MOST_OF_USER or (
            self._of_host[host] >= _MOST_OF_HOST and (host, user) not in self._seen
        )

    def _note_seen(self, host: str, user: bytes) -> None:
        self._seen[host, user] = None
        self._seen.move_to_end((host, user))
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)

    async def _wait(self, host: str, user: bytes, delay_s: float) -> None:
        self._of_host[host] += 1
        self._of_user[host, user] += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._of_host[host] -= 1
            self._of_user[host, user] -= 1
            if not self._of_host[host]:
                del self._of_host[host]
            if not self._of_user[host, user]:
                del self._of_user[host, user]

    def _login_of(self, authorization: bytes, host: str) -> tuple[bytes | None, Coroutine[Any, Any, Proven]]:
        """Returns whose password the header has, None if it has a token, and the login."""
        scheme, _, proof = authorization.partition(b" ")
        scheme, proof = scheme.lower(), proof.strip()
        user = None if scheme == b"bearer" else _NO_NAME
        if len(authorization) > _LONGEST_HEADER:
            return user, _refused(f"the header Authorization has more than {_LONGEST_HEADER} bytes")
        if scheme == b"bearer":
            return user, self._by_token(proof, host)
        if scheme != b"basic":
            return user, _refused("the header Authorization is neither Basic nor Bearer")
        try:
            user, password = basic_parts(proof)
        except SaslRefused as refused:
            return user, _refused(str(refused))
        return user, self._by_password(b"\0".join((b"", user, password)), host)

    async def _by_token(self, token: bytes, host: str) -> Proven:
        if token.startswith(_PREFIX):
            return await self._by_own_token(token)
        if OAUTHBEARER not in self._authentication.settings.mechanisms:
            raise SaslRefused("no identity provider is set")
        found = await self._authentication.login(OAUTHBEARER, host).step(
            b"n,,\x01auth=Bearer " + token + b"\x01\x01"
        )
        if isinstance(found, Challenge):
            raise SaslRefused("the token is refused")
        return found

    async def _by_password(self, message: bytes, host: str) -> Proven:
        if not self.takes_passwords:
            raise SaslRefused("TIDELOG_SASL_MECHANISMS has no mechanism with passwords")
        found = await self._authentication.login(PLAIN, host).step(message)
        assert isinstance(found, Proven), "PLAIN has one step"
        return found

    async def _key(self) -> bytes:
        return hmac.digest(await self._authentication.known.decoy_key(), _PURPOSE, "sha256")

    async def _token_of(self, proven: Proven, began_s: int) -> tuple[str, int]:
        key = proven.credential
        assert key is not None, "a password or an own token proves a credential"
        change = next((one.change for one in await self._credentials(key.user) if one.key == key), None)
        if change is None:
            raise SaslRefused("the credential was deleted meanwhile", key.user)
        now_s = int(self._wall_clock())
        ends_s = min(now_s + self._authentication.settings.http_token_s, began_s + _LONGEST_RENEWED_S)
        if ends_s <= now_s:
            raise SaslRefused("the login is too old to be renewed", key.user)
        claims = [key.user, key.mechanism.value, change, ends_s, began_s]
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
        return (_PREFIX + body + b"." + _signature(await self._key(), body)).decode(), ends_s - now_s

    async def _by_own_token(self, token: bytes) -> Proven:
        body, _, signature = token.removeprefix(_PREFIX).partition(b".")
        try:
            key = await self._key()
        except SequencerUnavailable as error:
            raise CannotCheck(str(error)) from error
        if not hmac.compare_digest(signature, _signature(key, body)):
            raise SaslRefused("the token is not of this cluster")
        user, mechanism, change, ends_s, _ = _claims(body)
        if self._wall_clock() >= ends_s:
            raise SaslRefused("the token has expired", user)
        for one in await self._credentials(user):
            if one.key.mechanism.value == mechanism and one.change == change:
                return Proven(user=user, credential=CredentialKey(user, one.key.mechanism))
        raise SaslRefused("the token's credential was changed or deleted", user)

    async def _credentials(self, user: str) -> tuple[Credential, ...]:
        return await self._authentication.known.of(user)


async def _refused(why: str) -> Proven:
    raise SaslRefused(why)


def basic_parts(proof: bytes, *, form_encoded: bool = False) -> tuple[bytes, bytes]:
    """Returns user and password. `form_encoded`: as OAuth2 wants (RFC 6749 2.3.1). Raises SaslRefused."""
    try:
        user, colon, password = base64.b64decode(proof, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        raise SaslRefused("the header Authorization is not base64") from None
    if not colon:
        raise SaslRefused("the header Authorization has no password")
    if form_encoded:
        return (
            unquote_plus(user.decode("latin-1")).encode(),
            unquote_plus(password.decode("latin-1")).encode(),
        )
    return user, password


def _began_s(token: bytes) -> int:
    """Returns when the user of a verified token logged in with a password."""
    return int(_claims(token.removeprefix(_PREFIX).partition(b".")[0])[4])


def _claims(body: bytes) -> list[Any]:
    found: list[Any] = json.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
    return found


def _signature(key: bytes, body: bytes) -> bytes:
    return base64.urlsafe_b64encode(hmac.digest(key, body, "sha256")).rstrip(b"=")
