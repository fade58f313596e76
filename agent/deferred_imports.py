"""What an agent imports once it serves, because its first answers need none of it: 0.7 s of CPU, half of its start.

Each is imported where it is used, inside a function, and all of it here, in a thread, as soon as Kafka is served. So a
module that cannot be imported ends the agent at its start, not at the first request that needs it; and no request that
comes later waits for an import.
"""
# ruff: noqa: F401 - imported to be there


def import_all() -> None:
    """Raises ImportError."""
    import pyarrow  # storage/batches/compression.py: gzip, lz4 and zstd

    import agent.groups.conversion.group
    import agent.http.app
    import agent.http.iceberg
    import agent.http.server
    import agent.telemetry.otlp
    from agent.kafka.served import APIS

    for api in APIS:
        assert api.code is not None
