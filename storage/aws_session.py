"""What calls to an AWS service need of aiobotocore, loaded once.

Its import and the models that its first client reads take most of a second. So a thread loads them, and only
where such a service is asked.
"""

import asyncio
from typing import Any

from storage.threads import Threads


class AwsSession:
    """Makes clients of one service, such as `kms`."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._session: Any = None
        self._loading = asyncio.Lock()

    async def get(self) -> Any:
        """Returns the session (`aiobotocore.session.AioSession`)."""
        async with self._loading:
            if self._session is None:
                self._session = await Threads(self._service, 1).run(self._load)
        return self._session

    def _load(self) -> Any:
        from aiobotocore.session import get_session

        session = get_session()
        loader = session.get_component("data_loader")
        for kind in ("service-2", "endpoint-rule-set-1"):
            loader.load_service_model(self._service, kind)
        for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
            loader.load_data(name)
        return session
