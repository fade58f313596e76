"""The synchronous `minio` client, for callers without an event loop and for calls that the agents' client
lacks."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider, StaticProvider
from minio.sse import Sse

from storage.credentials import NoKeys
from storage.stores.object_store import StoreUrl


def endpoint_of(url: StoreUrl) -> str:
    """Returns host and port."""
    return urlsplit(url.endpoint or "https://s3.amazonaws.com").netloc


def minio_client(
    url: StoreUrl,
    *,
    access_key: str | None,
    secret_key: str | None,
    region: str,
    connections: int,
    connect_timeout_s: float,
    read_timeout_s: float,
    attempts: int,
    retry_base_s: float,
    ca_file: str | None = None,
) -> Minio:
    """Without keys in the settings, it uses the usual AWS chain."""
    retries = urllib3.Retry(
        total=attempts - 1,
        backoff_factor=retry_base_s,
        backoff_jitter=retry_base_s,
        status_forcelist=[500, 502, 503, 504],
        allowed_methods=None,
    )
    timeout = urllib3.Timeout(connect=connect_timeout_s, read=read_timeout_s)
    return Minio(
        endpoint=endpoint_of(url),
        secure=urlsplit(url.endpoint or "https://").scheme == "https",
        region=region,
        credentials=_credentials(access_key, secret_key),
        http_client=urllib3.PoolManager(
            timeout=timeout, retries=retries, maxsize=connections, block=True, ca_certs=ca_file
        ),
    )


def _credentials(access_key: str | None, secret_key: str | None) -> Provider:
    if access_key and secret_key:
        return StaticProvider(access_key=access_key, secret_key=secret_key)
    return ChainedKeysForMinio()


class ServerSideEncryption(Sse):
    """These headers for an upload. minio's own SSE-KMS refuses endpoints without TLS."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)

    def headers(self) -> dict[str, str]:
        return self._headers

    def tls_required(self) -> bool:
        return False


class ChainedKeysForMinio(Provider):
    """Gives the synchronous client the keys of the usual AWS chain (`storage/credentials.py`)."""

    def __init__(self) -> None:
        self._found: Any = None

    def retrieve(self) -> Credentials:
        """Raises NoKeys, or botocore's errors."""
        if self._found is None:
            from botocore.session import get_session

            self._found = get_session().get_credentials()
            if self._found is None:
                raise NoKeys
        keys = self._found.get_frozen_credentials()
        return Credentials(access_key=keys.access_key, secret_key=keys.secret_key, session_token=keys.token)
