"""All settings of `tidelog agent`, and the checks of settings of different parts that must fit each other.

Each part checks its own settings; this module checks what concerns two parts. Pure. Promises:
- An agent does not start with settings under which it would break a promise, or could never serve what it
  takes.
- The error names every variable concerned and says what to set it to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from agent.groups.settings import GroupSettings
from agent.quotas.settings import QuotaSettings
from agent.read_path.settings import ReadPathSettings
from agent.security.acls.settings import AuthorizationSettings
from agent.security.audit.settings import AuditSettings
from agent.security.listener_settings import ListenerSettings
from agent.security.sasl.settings import SaslSettings
from agent.settings import AgentSettings, AppSettings
from agent.tenants.settings import TenantSettings
from agent.write_path.backoff import LONGEST_PAUSE_S
from cache_ring.settings import CacheRingSettings
from compactor.settings import HousekeeperSettings
from sequencer.settings import SequencerSettings
from storage.encryption.settings import EncryptionSettings
from storage.scoped_keys import PATTERN_LETTERS
from storage.stores.object_store import StoreSettings, StoreUrl
from tidelog.errors import UserError
from tidelog.process.environment import Environment
from tidelog.process.settings import ProcessSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSettings(AppSettings):
    """All settings of one process of `tidelog agent`. The process reads no setting from anywhere else."""

    housekeeper: HousekeeperSettings
    process: ProcessSettings

    @classmethod
    def read(cls, environment: Environment) -> Self:
        """Raises UserError for the first that is wrong."""
        return cls(
            agent=environment.read(AgentSettings),
            store=environment.read(StoreSettings),
            sequencer=environment.read(SequencerSettings),
            ring=environment.read(CacheRingSettings),
            read_path=environment.read(ReadPathSettings),
            groups=environment.read(GroupSettings),
            listeners=environment.read(ListenerSettings),
            sasl=environment.read(SaslSettings),
            authorization=environment.read(AuthorizationSettings),
            quotas=environment.read(QuotaSettings),
            encryption=environment.read(EncryptionSettings),
            tenants=environment.read(TenantSettings),
            audit=environment.read(AuditSettings),
            housekeeper=environment.read(HousekeeperSettings),
            process=environment.read(ProcessSettings),
        )


def check_settings_fit(settings: AllSettings) -> None:
    """Raises UserError with everything that does not fit."""
    faults = list(_faults(settings))
    if faults:
        raise UserError("; ".join(faults) + ".", "These variables must fit each other.")


def _faults(settings: AllSettings) -> Iterator[str]:
    agent, housekeeper = settings.agent, settings.housekeeper
    listeners = settings.listeners.kafka_listeners(agent)
    if agent.one_address is not None and len(listeners) > 1:
        yield (
            "TIDELOG_ONE_ADDRESS and several TIDELOG_LISTENERS exclude each other: behind one address there "
            "is no second one"
        )
    with_sasl = [one.name for one in listeners if one.security_protocol.has_sasl]
    if with_sasl and not settings.sasl.mechanisms:
        yield (
            f"the listener {with_sasl[0]} asks clients to authenticate, and TIDELOG_SASL_MECHANISMS names "
            "nothing: set it, for example to SCRAM-SHA-512"
        )
    if settings.sasl.http_authentication and not settings.sasl.mechanisms:
        yield (
            "TIDELOG_HTTP_AUTHENTICATION is set, and TIDELOG_SASL_MECHANISMS names nothing: set it, for "
            "example to SCRAM-SHA-512"
        )
    yield from _sts_faults(agent)
    if settings.sasl.mechanisms and not with_sasl and not settings.sasl.http_authentication:
        yield (
            "TIDELOG_SASL_MECHANISMS is set, and no listener asks clients to authenticate: set "
            "TIDELOG_SECURITY_PROTOCOL to SASL_PLAINTEXT or SASL_SSL, or give a listener such a protocol in "
            "TIDELOG_LISTENER_SECURITY_PROTOCOL_MAP"
        )
    if 2 * settings.read_path.coordinate_max_age_s >= housekeeper.garbage_grace_s:
        yield (
            f"TIDELOG_GARBAGE_GRACE_S ({housekeeper.garbage_grace_s:g}) must be more than twice "
            f"TIDELOG_COORDINATE_MAX_AGE_S ({settings.read_path.coordinate_max_age_s:g}): objects would "
            "be deleted that agents still read"
        )
    longest_upload_s = agent.upload_attempts * (agent.upload_timeout_s + LONGEST_PAUSE_S)
    if housekeeper.late_write_window_s <= longest_upload_s:
        yield (
            f"TIDELOG_LATE_WRITE_WINDOW_S ({housekeeper.late_write_window_s:g}) must be more than "
            f"{longest_upload_s:g}, the longest upload (TIDELOG_UPLOAD_ATTEMPTS times "
            "TIDELOG_UPLOAD_TIMEOUT_S and a "
            "pause): what arrives later would stay in the bucket for ever"
        )
    if housekeeper.outcome_retention_s <= agent.reservation_lease_s:
        yield (
            f"TIDELOG_OUTCOME_RETENTION_S ({housekeeper.outcome_retention_s:g}) must be more than "
            f"TIDELOG_RESERVATION_LEASE_S ({agent.reservation_lease_s:g}): a commit could be repeated "
            "after its outcome is forgotten"
        )
    if (
        settings.sequencer.database_answer_timeout_s
        <= settings.sequencer.database_statement_timeout_ms / 1000
    ):
        yield (
            f"TIDELOG_DATABASE_ANSWER_TIMEOUT_S ({settings.sequencer.database_answer_timeout_s:g}) must "
            "be more than "
            f"TIDELOG_DATABASE_STATEMENT_TIMEOUT_MS ({settings.sequencer.database_statement_timeout_ms}) "
            "in seconds: "
            "connections would be given up that Postgres is about to answer on"
        )
    if agent.linger_ms / 1000 >= agent.max_produce_timeout_s:
        yield (
            f"TIDELOG_LINGER_MS ({agent.linger_ms:g}) must be less than TIDELOG_MAX_PRODUCE_TIMEOUT_S "
            f"({agent.max_produce_timeout_s:g}) in milliseconds: requests would time out before they are "
            "written"
        )
    if agent.linger_ms / 1000 >= agent.interactive_wait_s:
        yield (
            f"TIDELOG_INTERACTIVE_WAIT_S ({agent.interactive_wait_s:g}) must be more than TIDELOG_LINGER_MS "
            f"({agent.linger_ms:g}) in seconds: interactive requests would fail before they are written"
        )
    if settings.ring.max_page_bytes < agent.segment_size_bytes:
        yield (
            f"TIDELOG_MAX_PAGE_BYTES ({settings.ring.max_page_bytes}) must be at least "
            "TIDELOG_SEGMENT_SIZE_BYTES "
            f"({agent.segment_size_bytes}): no agent could have a segment from another"
        )
    if settings.ring.page_load_timeout_s < settings.store.s3_call_timeout_s:
        yield (
            f"TIDELOG_PAGE_LOAD_TIMEOUT_S ({settings.ring.page_load_timeout_s:g}) must be at least "
            f"TIDELOG_S3_CALL_TIMEOUT_S ({settings.store.s3_call_timeout_s:g}): reads would be given up "
            "that the store is about to answer"
        )


def _sts_faults(agent: AgentSettings) -> Iterator[str]:
    if agent.iceberg_sts_role_arn is None:
        if agent.iceberg_sts_endpoint is not None:
            yield (
                "TIDELOG_ICEBERG_STS_ENDPOINT is set, and TIDELOG_ICEBERG_STS_ROLE_ARN is not: set the role, "
                "for MinIO for example to arn:aws:iam::000000000000:role/readers"
            )
        return
    try:
        store = StoreUrl.parse(agent.store_url)
    except ValueError:
        return  # the start says what is wrong with it
    if store.scheme != "s3":
        yield (
            "TIDELOG_ICEBERG_STS_ROLE_ARN is set, and TIDELOG_STORE_URL names no bucket: unset the role, "
            f"because a store of kind {store.scheme} has no keys"
        )
    elif store.endpoint is not None and agent.iceberg_sts_endpoint is None:
        yield (
            "TIDELOG_ICEBERG_STS_ROLE_ARN is set, and the bucket is not on AWS: set "
            f"TIDELOG_ICEBERG_STS_ENDPOINT, for MinIO to {store.endpoint}"
        )
    if set(PATTERN_LETTERS) & set(store.prefix):
        yield (
            f"TIDELOG_STORE_URL has one of the letters {PATTERN_LETTERS} in its prefix, patterns to "
            "STS: unset TIDELOG_ICEBERG_STS_ROLE_ARN or move the store"
        )
