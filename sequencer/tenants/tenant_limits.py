"""What a tenant may have and do: topics, partitions, what its topics keep, users, ACLs, entities with quotas,
and rates of the tenant as a whole. Pure.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from sequencer.topics.known_configs import KNOWN_CONFIGS

MOST_USERS: Final = 10_000
MOST_ACLS: Final = 10_000
MOST_GROUPS: Final = 10_000
MOST_TRANSACTIONAL_IDS: Final = 10_000
MOST_QUOTAS: Final = 100
"""Of a tenant for which no limit is set: its admins need not be trusted."""


class TenantLimitReached(Exception):
    """A tenant would have more than its limits allow. The message is for its client."""


class Planned:
    """What the earlier topics of a request that is only checked would add to each tenant."""

    def __init__(self) -> None:
        self._by_tenant: dict[str | None, tuple[int, int]] = {}

    def add(self, tenant: str | None, topics: int, partitions: int) -> None:
        before = self.of(tenant)
        self._by_tenant[tenant] = (before[0] + topics, before[1] + partitions)

    def of(self, tenant: str | None) -> tuple[int, int]:
        """Returns topics and partitions."""
        return self._by_tenant.get(tenant, (0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """None: no limit, except for what has a number above. A retention limit holds for topics that are created
    or altered from then on.
    """

    topics: int | None = None
    partitions: int | None = None
    """Of all topics together."""
    retention_ms: int | None = None
    """The longest `retention.ms`. With it or `retention_bytes`, a `cleanup.policy` needs delete."""
    retention_bytes: int | None = None
    """The largest `retention.bytes` of a topic, which counts per partition."""
    users: int | None = None
    """With credentials. None: MOST_USERS. Checked in functions/alter_credentials.sql."""
    acls: int | None = None
    """None: MOST_ACLS. Checked in functions/add_acls.sql."""

    groups: int | None = None
    """None: MOST_GROUPS. As many groups may have configs."""
    transactional_ids: int | None = None
    """None: MOST_TRANSACTIONAL_IDS."""
    quotas: int | None = None
    """Entities with client quotas. None: MOST_QUOTAS. Checked in functions/alter_client_quotas.sql."""
    produce_bytes_rate: int | None = None
    """Of all its clients together, in the whole cluster, per second. Agents hold them to it."""
    fetch_bytes_rate: int | None = None
    request_percentage: int | None = None
    """100: one agent's event loop."""
    mutation_rate: int | None = None
    """Partitions that are created or deleted per second."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Returns what a row says. Limits that this version does not know are left out."""
        return cls(**{field.name: stored[field.name] for field in fields(cls) if field.name in stored})

    def as_stored(self) -> dict[str, int]:
        return {name: limit for name, limit in asdict(self).items() if limit is not None}

    def check_numbers(self, topics: int, partitions: int) -> None:
        """Checks what the tenant would have. Raises TenantLimitReached."""
        if self.topics is not None and topics > self.topics:
            raise TenantLimitReached(f"There may be at most {self.topics} topics.")
        if self.partitions is not None and partitions > self.partitions:
            raise TenantLimitReached(f"All topics together may have at most {self.partitions} partitions.")

    def kept_within(self, config: Mapping[str, str]) -> dict[str, str]:
        """Returns the configs of a topic, with the limit where the default would keep more. Raises
        TenantLimitReached if a config asks for more.
        """
        kept = dict(config)
        is_limited = self.retention_ms is not None or self.retention_bytes is not None
        policy = config.get("cleanup.policy", KNOWN_CONFIGS["cleanup.policy"].default)
        if is_limited and "delete" not in (one.strip() for one in policy.split(",")):
            # The last record of each key, or every record, would stay for ever.
            raise TenantLimitReached(
                "cleanup.policy needs delete here, such as compact,delete: retention is limited."
            )
        for name, limit in (("retention.ms", self.retention_ms), ("retention.bytes", self.retention_bytes)):
            if limit is None:
                continue
            asked = config.get(name)
            value = int(asked if asked is not None else KNOWN_CONFIGS[name].default)
            if 0 <= value <= limit:
                continue
            if asked is not None:
                raise TenantLimitReached(f"{name} may be at most {limit} here, not {asked}.")
            kept[name] = str(limit)
        longest = config.get("tidelog.history.retention.ms")
        if self.retention_ms is not None and longest is not None:
            value = int(longest)
            if value == -1 or value > self.retention_ms:
                raise TenantLimitReached(
                    f"tidelog.history.retention.ms may be at most {self.retention_ms} here, not {longest}."
                )
        return kept
