"""Administrative requests by hand, each returning the one result that it asks for."""

from datetime import timedelta
from typing import Any

from tests.agent.read_path.wire import request
from tests.agent.running import Wire

TIMEOUT = timedelta(seconds=30)


async def create(
    wire: Wire, name: str, *, version: int = 7, validate_only: bool = False, **values: Any
) -> Any:
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 3,
        "assignments": (),
        "configs": [],
        **values,
    }
    answer = await wire.ask(
        request(19, version, topics=[topic], timeout=TIMEOUT, validate_only=validate_only)
    )
    return answer.topics[0]


async def delete(wire: Wire, version: int, **topic: Any) -> Any:
    if version >= 6:
        asked = request(20, version, topics=[{"name": None, "topic_id": None, **topic}], timeout=TIMEOUT)
    else:
        asked = request(20, version, topic_names=(topic["name"],), timeout=TIMEOUT)
    return (await wire.ask(asked)).responses[0]


async def alter(
    wire: Wire, name: str, *configs: tuple[str, int, str | None], version: int = 1, **values: Any
) -> Any:
    changes = [
        {"name": key, "config_operation": operation, "value": value} for key, operation, value in configs
    ]
    resource = {"resource_type": 2, "resource_name": name, "configs": changes, **values.pop("resource", {})}
    asked = request(44, version, resources=[resource], **{"validate_only": False, **values})
    return (await wire.ask(asked)).responses[0]


async def describe(wire: Wire, name: str, *, version: int = 4, kind: int = 2, keys: Any = None) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    asked = request(32, version, resources=[resource], include_synonyms=True, include_documentation=True)
    return (await wire.ask(asked)).results[0]


async def grow(wire: Wire, name: str, count: int, *, version: int = 3, **values: Any) -> Any:
    topic = {"name": name, "count": count, "assignments": None, **values.pop("topic", {})}
    asked = request(37, version, topics=[topic], timeout=TIMEOUT, **{"validate_only": False, **values})
    return (await wire.ask(asked)).results[0]
