"""Reads ranges from endpoints that serve them with status 200, which object_store refuses (rclone, which the
development stack uses): signed URLs, read by httpx.

A range costs about ten times the CPU of a whole object by obstore. So `s3_store` reads whole objects without
a range.

Promise: the bytes `[start, end)`, or the error that obstore would have raised for the same response.
"""

from datetime import timedelta

import obstore
from obstore.exceptions import GenericError
from obstore.store import S3Store as Client

from storage.stores.object_store import StoreSettings

_URL_LASTS = timedelta(minutes=5)


class SignedRanges:
    def __init__(self, client: Client, settings: StoreSettings) -> None:
        import httpx  # 0.05 s, which only such an endpoint costs

        self._client = client
        self._errors = httpx.HTTPError
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(settings.s3_read_timeout_s, connect=settings.s3_connect_timeout_s),
            limits=httpx.Limits(max_connections=settings.s3_connections),
            trust_env=False,
        )

    async def get(self, path: str, start: int, end: int | None) -> bytes | memoryview:
        signed = await obstore.sign_async(self._client, "GET", path, _URL_LASTS)
        asked = f"bytes={start}-" + ("" if end is None else str(end - 1))
        try:
            answer = await self._http.get(signed, headers={"Range": asked})
        except self._errors as error:
            raise GenericError(f"HTTP error: {error or type(error).__name__}") from error
        if not answer.is_success:
            raise GenericError(f"Server returned non-2xx status code: {answer.status_code}: {answer.text}")
        if "Content-Range" in answer.headers:
            return answer.content
        return memoryview(answer.content)[start:end]  # the endpoint ignores ranges

    async def close(self) -> None:
        await self._http.aclose()
