"""The synchronous `minio` client, for callers without an event loop and for calls that the agents' client
lacks."""

from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.credentials.providers import Provider, StaticProvider

from storage.credentials import ChainedKeysForMinio
from storage.stores.object_store import StoreUrl


def endpoint_of(url: StoreUrl) -> str:
    """Host and port."""
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
) -> Minio:
    """Without keys in the settings, it asks the usual AWS chain."""
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
        http_client=urllib3.PoolManager(timeout=timeout, retries=retries, maxsize=connections, block=True),
    )


def _credentials(access_key: str | None, secret_key: str | None) -> Provider:
    if access_key and secret_key:
        return StaticProvider(access_key=access_key, secret_key=secret_key)
    return ChainedKeysForMinio()
