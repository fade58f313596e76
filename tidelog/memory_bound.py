"""How much memory a process of `tidelog agent` may take: the sum of its settings in bytes (pure).

Promises that everything which holds bytes of clients, of the store or of peers is in the sum. What the process takes
besides (code, the interpreter, small objects) is `PROCESS_BYTES`.
"""

from collections.abc import Mapping
from typing import Final

from tidelog.settings_fit import AllSettings

PROCESS_BYTES: Final = 200 << 20
"""Measured: 180 MiB when everything is imported and used; about 10 KiB for each connection come on top."""


def byte_settings(settings: AllSettings, roles: frozenset[str]) -> Mapping[str, int]:
    """What may be held at once, by the setting that bounds it."""
    agent, ring, read_path = settings.agent, settings.ring, settings.read_path
    of_jobs = (
        {
            "merge_memory_bytes": settings.housekeeper.merge_memory_bytes,
            # As it comes from Postgres, and joined or compressed.
            "checkpoint_part_bytes": 2 * settings.housekeeper.checkpoint_part_bytes,
        }
        if "jobs" in roles
        else {}
    )
    if "kafka" not in roles:
        return of_jobs
    return {
        "request_memory_bytes": agent.request_memory_bytes,
        "unreserved_frame_bytes of max_connections": agent.unreserved_frame_bytes * agent.max_connections,
        "write_buffer_bytes of max_connections": agent.write_buffer_bytes * agent.max_connections,
        "max_decompressed_bytes of validation_threads": agent.max_decompressed_bytes * agent.validation_threads,
        "fetch_answer_bytes": read_path.fetch_answer_bytes,
        "page_cache_bytes": ring.page_cache_bytes,
        "peer_range_cache_bytes": ring.peer_range_cache_bytes,
        "catch_up_cache_bytes": ring.catch_up_cache_bytes,
        "tail_load_bytes": ring.tail_load_bytes,
        "catch_up_load_bytes": ring.catch_up_load_bytes,
        "peer_response_bytes": ring.peer_response_bytes,
        **of_jobs,
    }


def memory_bound_bytes(settings: AllSettings, roles: frozenset[str]) -> int:
    """What to give the process."""
    return PROCESS_BYTES + sum(byte_settings(settings, roles).values())
