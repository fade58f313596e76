"""How much memory a process of `tidelog agent` may take: the sum of its settings (pure).

Promises that the sum has everything that grows with what clients, the store or peers send: settings in bytes,
and settings that count entries, times the most that one entry takes. `PROCESS_BYTES` is the rest: code, the
interpreter, small objects.
"""

from collections.abc import Mapping
from typing import Final

from agent.kafka.transport.unauthenticated import small_frames_bytes
from tidelog.process.settings_fit import AllSettings

PROCESS_BYTES: Final = 200 << 20
"""Measured: 180 MiB when all modules are imported and used."""

# What an entry takes: itself, its key and its slot in the table. Measured in
# tests/tidelog/process/test_memory_bound.py.
CONNECTION_BYTES: Final = 10 << 10
TLS_CONNECTION_BYTES: Final = 64 << 10
"""In addition, of a connection with TLS that has sent and received (`benchmarks/tls.py`: 59 KiB)."""
TLS_HANDSHAKE_BYTES: Final = 160 << 10
"""OpenSSL keeps up to 100 KiB of a certificate chain, and its own state."""
TLS_SESSIONS_BYTES: Final = 32 << 20
"""OpenSSL remembers 20,480 sessions of clients that speak TLS 1.2 without tickets."""
CACHED_COORDINATE_BYTES: Final = 482
INDEXED_BATCH_BYTES: Final = 64
READ_PARTITION_BYTES: Final = 210
PAGE_AHEAD_BYTES: Final = 1 << 10
SUBSCRIPTION_BYTES: Final = 420
TOPIC_BYTES: Final = 2 << 10
SEQUENCE_GAP_BYTES: Final = 380
CREDENTIAL_BYTES: Final = 4 << 10
STRANGER_BYTES: Final = 480
VERIFIED_PASSWORD_BYTES: Final = 800
LOGIN_BYTES: Final = 7 << 10
"""What a login under way keeps of its client's messages."""
FAILING_HOST_BYTES: Final = 360
ACL_BYTES: Final = 1 << 10
"""Of an ACL with a name of 249 characters."""
DECISION_BYTES: Final = 1_400
"""Of a name of 249 characters that take four bytes each."""
DECODED_ROW_GROUP_BYTES: Final = 64 << 20
"""A row group of 8 MiB as Arrow columns, as records and as batches."""
THREAD_BYTES: Final = 256 << 10
"""What a thread uses of its stack and of its allocator's cache."""


def byte_settings(settings: AllSettings) -> Mapping[str, int]:
    """The most bytes that may be held at once, by the settings that bound them."""
    roles = settings.process.role_set
    of_jobs = _of_jobs(settings) if "jobs" in roles else {}
    if "kafka" not in roles:
        return of_jobs
    return {
        **_of_requests(settings),
        **_of_tls(settings),
        **(_of_acls(settings) if settings.authorization.authorizer else {}),
        **_of_reads(settings),
        **_of_entries(settings),
        **of_jobs,
    }


def _of_jobs(settings: AllSettings) -> dict[str, int]:
    housekeeper = settings.housekeeper
    return {
        "merge_memory_bytes": housekeeper.merge_memory_bytes,
        # Once as Postgres sends it, and once joined or compressed.
        "checkpoint_part_bytes": 2 * housekeeper.checkpoint_part_bytes,
    }


def _of_requests(settings: AllSettings) -> dict[str, int]:
    agent = settings.agent
    forwarded = agent.max_forwarded_connections if agent.one_address is not None else 0
    connections = agent.max_connections + forwarded
    return {
        **(_of_logins(settings) if settings.sasl.mechanisms else {}),
        "request_memory_bytes": agent.request_memory_bytes,
        "max_connections and max_forwarded_connections": CONNECTION_BYTES * connections,
        "unreserved_frame_bytes of max_connections": agent.unreserved_frame_bytes * agent.max_connections,
        "write_buffer_bytes of max_connections": agent.write_buffer_bytes * agent.max_connections,
        "large_answer_bytes": agent.large_answer_bytes,
        "max_decompressed_bytes of validation_threads": agent.max_decompressed_bytes
        * agent.validation_threads,
        # A push as received, decompressed, and parsed.
        "telemetry_max_bytes": 3 * agent.telemetry_max_bytes,
        "telemetry_bytes": agent.telemetry_bytes,
        **({"audit_buffer_bytes": settings.audit.audit_buffer_bytes} if settings.audit.audit_topic else {}),
        "threads": THREAD_BYTES * (agent.validation_threads + settings.store.file_store_threads),
    }


def _of_tls(settings: AllSettings) -> dict[str, int]:
    agent, listeners, ring = settings.agent, settings.listeners, settings.ring
    bound: dict[str, int] = {}
    uses = 0
    if any(one.security_protocol.is_encrypted for one in listeners.kafka_listeners(agent)):
        uses += 1
        bound["TLS of max_connections"] = TLS_CONNECTION_BYTES * agent.max_connections
    if listeners.http_tls:
        uses += 1
    if listeners.peer_tls != "off":
        uses += 1
        bound["TLS of peer_accepted_connections"] = TLS_CONNECTION_BYTES * ring.peer_accepted_connections
    if uses:
        bound["tls_handshakes"] = uses * (TLS_HANDSHAKE_BYTES * listeners.tls_handshakes + TLS_SESSIONS_BYTES)
    return bound


def _of_logins(settings: AllSettings) -> dict[str, int]:
    sasl = settings.sasl
    return {
        "frames of sasl_max_unauthenticated": 2 * small_frames_bytes(sasl),
        # A client that has logged in may do so again.
        "logins of max_connections": LOGIN_BYTES * settings.agent.max_connections,
        "sasl_large_frames_bytes": max(sasl.sasl_large_frames_bytes, sasl.sasl_max_receive_bytes),
        # A user, and a name that no user has.
        "sasl_credentials_cached": (CREDENTIAL_BYTES + STRANGER_BYTES) * sasl.sasl_credentials_cached,
        "sasl_verified_passwords": VERIFIED_PASSWORD_BYTES * sasl.sasl_verified_passwords,
        "sasl_failing_hosts": FAILING_HOST_BYTES * sasl.sasl_failing_hosts,
        "sasl_password_threads": THREAD_BYTES * sasl.sasl_password_threads,
        "oauth_keys_bytes": 10 * sasl.oauth_keys_bytes,
    }


def _of_acls(settings: AllSettings) -> dict[str, int]:
    authorization = settings.authorization
    return {
        # The snapshot that decides, and the next one while it is read.
        "max_acls": 2 * ACL_BYTES * authorization.max_acls,
        "acl_decisions": DECISION_BYTES * authorization.acl_decisions,
    }


def _of_reads(settings: AllSettings) -> dict[str, int]:
    ring, read_path = settings.ring, settings.read_path
    return {
        "fetch_answer_bytes": read_path.fetch_answer_bytes,
        # A run's pages, and a joined copy if it lies in several.
        "time_lookup_bytes": 2 * read_path.time_lookup_bytes,
        "page_cache_bytes": ring.page_cache_bytes,
        "peer_range_cache_bytes": ring.peer_range_cache_bytes,
        "catch_up_cache_bytes": ring.catch_up_cache_bytes,
        "row_group_cache_bytes": ring.row_group_cache_bytes,
        # As they are in their files, and a joined copy.
        "row_group_load_bytes": 2 * ring.row_group_load_bytes,
        "row_group_threads": DECODED_ROW_GROUP_BYTES * ring.row_group_threads,
        "tail_load_bytes": ring.tail_load_bytes,
        "catch_up_load_bytes": ring.catch_up_load_bytes,
        "peer_response_bytes": ring.peer_response_bytes,
        "push_buffers_bytes": ring.push_buffers_bytes + ring.push_buffer_bytes,
    }


def _of_entries(settings: AllSettings) -> dict[str, int]:
    agent, ring, read_path = settings.agent, settings.ring, settings.read_path
    return {
        "coordinate_cache_runs": CACHED_COORDINATE_BYTES * read_path.coordinate_cache_runs,
        "run_index_batches": INDEXED_BATCH_BYTES * ring.run_index_batches,
        "read_partitions": READ_PARTITION_BYTES * read_path.read_partitions,
        "catch_up_read_ahead_pages": PAGE_AHEAD_BYTES * read_path.catch_up_read_ahead_pages,
        "max_subscriptions": SUBSCRIPTION_BYTES * ring.max_subscriptions,
        "topic_cache_entries": TOPIC_BYTES * agent.topic_cache_entries,
        "max_sequence_gaps": SEQUENCE_GAP_BYTES * agent.max_sequence_gaps,
    }


def memory_bound_bytes(settings: AllSettings) -> int:
    """The memory to give the process."""
    return PROCESS_BYTES + sum(byte_settings(settings).values())
