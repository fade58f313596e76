"""The bucket's keys from the usual AWS chain, if the settings name none.

The chain is aiobotocore's: the environment, profiles (with SSO, assumed roles and `credential_process`), web
identity, and the roles of containers and machines. It is imported at the first request for keys. The data
path stays obstore's, which asks this module for keys.

Promises:
- Keys that expire are renewed before that: botocore begins 15 minutes earlier, and keeps valid keys while
  their source is away.
- A chain without any keys is an error that says what to set.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from obstore.store import S3Credential

_ASKED_AGAIN_AFTER: Final = timedelta(minutes=10)
"""obstore asks for new keys five minutes before this time."""


class NoKeys(ValueError):
    """The chain found no keys."""

    def __init__(self) -> None:
        super().__init__(
            "there are no keys for the bucket: set TIDELOG_S3_ACCESS_KEY and TIDELOG_S3_SECRET_KEY, or "
            "give the process a role, AWS_PROFILE or AWS_* variables"
        )


class ChainedKeys:
    """Gives obstore keys, in coroutines."""

    def __init__(self) -> None:
        self._found: Any = None

    async def __call__(self) -> "S3Credential":
        """Raises NoKeys, or botocore's errors."""
        if self._found is None:
            from aiobotocore.session import get_session

            self._found = await get_session().get_credentials()
            if self._found is None:
                raise NoKeys
        keys = await self._found.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": _asked_again_at(self._found),
        }


def _asked_again_at(found: Any) -> datetime:
    at = datetime.now(UTC) + _ASKED_AGAIN_AFTER
    expires_at: datetime | None = getattr(found, "_expiry_time", None)  # it has no public name
    return at if expires_at is None else min(at, expires_at.astimezone(UTC))
