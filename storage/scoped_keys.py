"""Temporary keys that read the objects under one prefix of the bucket: AssumeRole of AWS' Security Token
Service (STS), which MinIO also has.

Promises:
- The keys read objects under the prefix. They list nothing, write nothing and read nothing else, whatever the
  role may do: the session policy says so.
- A call ends within its time limit, once the first one has loaded the library.
- Neither keys nor policies are in an error, a log line or a repr.

The signer and the protocol are aiobotocore's, as for KMS.
"""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from storage.aws_session import AwsSession
from storage.stores.object_store import StoreSettings, StoreUrl

PATTERN_LETTERS: Final = "*?$"
"""A policy's resource takes these for patterns and variables. So no prefix may have them."""
_ATTEMPTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopedKeys:
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at: datetime
    """By the clock of STS, in UTC."""


class NoScopedKeys(Exception):
    """STS gave no keys. The message says why, without keys and policy."""


class TokenService:
    def __init__(
        self,
        store: StoreUrl,
        settings: StoreSettings,
        *,
        role_arn: str,
        endpoint: str | None,
        duration_s: int,
        timeout_s: float,
    ) -> None:
        """Without `endpoint` it asks AWS in the bucket's region. The agent's own keys sign the calls."""
        self._store = store
        self._settings = settings
        self._role_arn = role_arn
        self._endpoint = endpoint
        self._duration_s = duration_s
        self._timeout_s = timeout_s
        self._session = AwsSession("sts")

    async def load(self) -> None:
        """Loads the library, once."""
        await self._session.get()

    async def keys_for(self, prefix: str, session_name: str) -> ScopedKeys:
        """`prefix`: of keys in the bucket, with a slash at its end. `session_name`: 2 to 64 letters that
        AWS' audit log shows. Raises NoScopedKeys.
        """
        session = await self._session.get()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._assumed(session, prefix, session_name)
        except TimeoutError:
            raise NoScopedKeys(f"no answer within {self._timeout_s:g} s") from None

    async def _assumed(self, session: Any, prefix: str, session_name: str) -> ScopedKeys:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        settings, secret = self._settings, self._settings.s3_secret_key
        try:
            async with session.create_client(
                "sts",
                region_name=settings.s3_region,
                endpoint_url=self._endpoint,
                aws_access_key_id=settings.s3_access_key,
                aws_secret_access_key=None if secret is None else secret.get_secret_value(),
                verify=settings.s3_ca_file,
                config=Config(
                    connect_timeout=self._timeout_s,
                    read_timeout=self._timeout_s,
                    retries={"total_max_attempts": _ATTEMPTS},
                ),
            ) as client:
                answer = await client.assume_role(
                    RoleArn=self._role_arn,
                    RoleSessionName=session_name,
                    DurationSeconds=self._duration_s,
                    Policy=read_policy(self._store, prefix, partition=_partition(self._role_arn)),
                )
        except ClientError as error:
            # Its text is the service's: it may quote the request.
            raise NoScopedKeys(f"it refuses: {error.response['Error'].get('Code', 'no code')}") from None
        except (BotoCoreError, OSError) as error:
            raise NoScopedKeys(type(error).__name__) from None
        found = answer["Credentials"]
        return ScopedKeys(
            access_key=found["AccessKeyId"],
            secret_key=found["SecretAccessKey"],
            session_token=found["SessionToken"],
            expires_at=found["Expiration"].astimezone(UTC),
        )


def read_policy(store: StoreUrl, prefix: str, *, partition: str = "aws") -> str:
    """Returns the session policy for keys that read the objects under `prefix`. On AWS they may also decrypt
    them where the bucket uses SSE-KMS.
    """
    assert prefix.endswith("/"), "otherwise the keys would read prefixes that begin like it"
    assert not set(PATTERN_LETTERS) & set(prefix), "the agent's settings were checked for them"
    bucket = f"arn:{partition}:s3:::{store.bucket}"
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"{bucket}/{prefix}*"]}
    ]
    if store.endpoint is None:
        # With bucket keys the context names the bucket, otherwise the object.
        condition = {
            "kms:ViaService": "s3.*",
            "kms:EncryptionContext:aws:s3:arn": [bucket, f"{bucket}/{prefix}*"],
        }
        statements.append(
            {
                "Effect": "Allow",
                "Action": ["kms:Decrypt"],
                "Resource": ["*"],
                "Condition": {"StringLike": condition},
            }
        )
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def _partition(role_arn: str) -> str:
    """AWS' partitions (aws, aws-cn, aws-us-gov) have their own resource names."""
    given = role_arn.split(":")[1]
    return given if given.startswith("aws") else "aws"
