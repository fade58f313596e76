"""Imports that an agent's first answers do not need: 0.7 s of CPU, half of its start.

Each is imported inside the function that uses it. All of them are imported here, in a thread, as soon as
Kafka is served. So a module that cannot be imported ends the agent at its start, not at the first request
that needs it, and no later request waits for an import.
"""
# ruff: noqa: F401 - imported to be there


def import_all() -> None:
    """Raises ImportError."""
    import pyarrow  # storage/batches/compression.py: gzip, lz4 and zstd

    import agent.groups.group
    import agent.http.app
    import agent.http.iceberg
    import agent.http.server
    import agent.telemetry.otlp
    from agent.kafka.served import APIS

    for api in APIS:
        assert api.code is not None
