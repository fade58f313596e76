"""`tidelog agent`: one agent in the foreground, as a container runs it."""

from collections.abc import Mapping

import typer

from agent.groups.settings import GroupSettings
from agent.quotas.settings import QuotaSettings
from agent.read_path.settings import ReadPathSettings
from agent.security.acls.settings import AuthorizationSettings
from agent.security.audit.settings import AuditSettings
from agent.security.listener_settings import ListenerSettings
from agent.security.sasl.settings import SaslSettings
from agent.settings import AgentSettings
from agent.tenants.settings import TenantSettings
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from sequencer.settings import SequencerSettings
from storage.encryption.settings import EncryptionSettings
from storage.settings import Settings
from storage.stores.object_store import StoreSettings
from tidelog.process.environment import Environment
from tidelog.process.setting_options import GroupedCommand, with_settings
from tidelog.process.settings import ProcessSettings
from tidelog.process.start_agent import start_agent

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_GROUPS: Mapping[type[Settings], Mapping[str, str]] = {
    AgentSettings: {
        "database_url": "Where things are",
        "kafka_host": "Addresses",
        "iceberg_sts_role_arn": "Keys for readers of the Iceberg catalog",
        "max_request_bytes": "Requests and connections",
        "auto_create_topics": "Topics and routing",
        "segment_size_bytes": "Writing",
        "max_decompressed_bytes": "Checking batches",
        "gone_ranges_look_s": "Answers to clients",
        "bulk_memory_share": "Overload",
        "telemetry_metrics": "Metrics",
        "connect_backoff_s": "Start and end",
    },
    ListenerSettings: {
        "listeners": "Listeners and TLS",
        "http_tls": "TLS of the HTTP side and between agents",
    },
    ProcessSettings: {"roles": "The process"},
    StoreSettings: {"file_store_threads": "The object store"},
    EncryptionSettings: {"encryption_provider": "Encryption of topics"},
    SequencerSettings: {"database_pool_size": "Postgres"},
    CacheRingSettings: {
        "membership_lease_s": "Membership",
        "page_cache_bytes": "Pages in memory",
        "peer_connections": "Other agents",
        "subscription_lease_s": "Subscriptions",
    },
    ReadPathSettings: {"coordinate_poll_s": "Coordinates", "fetch_max_bytes": "Fetching"},
    GroupSettings: {
        "group_initial_rebalance_delay_ms": "Consumer groups",
        "group_streams_session_timeout_ms": "Streams groups",
        "group_queue_events": "Groups in memory",
    },
    SaslSettings: {"sasl_mechanisms": "Users and passwords", "oauth_jwks": "Tokens of an identity provider"},
    AuthorizationSettings: {"authorizer": "Authorization"},
    QuotaSettings: {"quota_poll_s": "Client quotas"},
    TenantSettings: {"tenants_poll_s": "Tenants"},
    AuditSettings: {"audit_log": "The audit trail"},
    HousekeeperSettings: {
        "retention_interval_s": "Retention and deletion",
        "ownership_ratchet_s": "Ownership and garbage",
        "merge_target_s": "Merging",
        "restore_horizon_s": "Journal and checkpoints",
        "job_lease_s": "Jobs",
    },
}
"""The first setting of each group of options in `--help`, by part."""


@app.command(cls=GroupedCommand)
@with_settings(*_GROUPS, groups=_GROUPS)
def agent(environment: Environment) -> None:
    """Run one agent. SIGTERM or SIGINT drains it. Every option is also a variable, named in brackets."""
    start_agent(environment)
