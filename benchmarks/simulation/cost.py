"""What a month costs: requests, storage, machines, traffic between zones; and Apache Kafka's from the same
prices.

Prices are public list prices of one region (us-east-1) as of `Prices.as_of`, without discounts; each is a
parameter.
"""

from dataclasses import dataclass, field

MONTH_S = 730 * 3600.0
_GB = 1e9
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars."""

    as_of: str = "2025"
    per_put: float = 0.005 / 1000
    per_get: float = 0.0004 / 1000
    storage_per_gb_month: tuple[tuple[float, float], ...] = (
        (50e3, 0.023),
        (450e3, 0.022),
        (float("inf"), 0.021),
    )
    """Tiers: this many GB at this price each."""
    between_zones_per_gb: float = 0.02
    """0.01 on each side."""
    disk_per_gb_month: float = 0.08
    """General-purpose SSD, for Kafka."""
    core_hour: float = 0.0363
    """Of machines with a core per 2 GiB: agents."""
    broker_core_hour: float = 0.0536
    """Of machines with a core per 8 GiB: Kafka."""
    postgres_core_hour: float = 0.225
    """Managed, with a standby in another zone."""

    def storage(self, gb: float) -> float:
        """Per month."""
        cost, left = 0.0, gb
        for tier_gb, price in self.storage_per_gb_month:
            part = min(left, tier_gb)
            cost += part * price
            left -= part
        return cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Steady, per second."""

    bytes_per_s: float
    puts_per_s: float
    gets_per_s: float
    agents: int
    postgres_cores: float
    retention_days: float = 7.0
    merged_object_bytes: float = 32 * _MIB
    merge_copies: float = 2.0
    """How often merging copies a byte. It reads objects of their size and writes objects of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """US dollars per month, by purpose."""

    parts: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def tidelog_bill(usage: Usage, prices: Prices) -> Bill:
    stored_gb = usage.bytes_per_s * usage.retention_days * 86_400 / _GB
    merged_per_s = usage.bytes_per_s / usage.merged_object_bytes
    merging = usage.merge_copies * merged_per_s * prices.per_put
    merging += (usage.puts_per_s + max(0.0, usage.merge_copies - 1) * merged_per_s) * prices.per_get
    return Bill(
        parts={
            "PUT": usage.puts_per_s * MONTH_S * prices.per_put,
            "GET": usage.gets_per_s * MONTH_S * prices.per_get,
            "merging": merging * MONTH_S,
            "storage": prices.storage(stored_gb),
            "agents": usage.agents * MONTH_S / 3600 * prices.core_hour,
            "Postgres": usage.postgres_cores * MONTH_S / 3600 * prices.postgres_core_hour,
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCluster:
    """Three replicas, one per zone, clients in all zones."""

    bytes_per_s: float
    groups: int
    retention_days: float = 7.0
    fetches_from_own_zone: bool = True
    """KIP-392: consumers read from the replica in their zone."""
    bytes_per_core_s: float = 10e6
    """Produced, before replication: a broker core's share."""
    disk_headroom: float = 1.4


def kafka_bill(cluster: KafkaCluster, prices: Prices) -> Bill:
    """Two thirds of producers have their leader in another zone, and each byte goes to two more."""
    month_gb = cluster.bytes_per_s * MONTH_S / _GB
    read = 0.0 if cluster.fetches_from_own_zone else cluster.groups * 2 / 3
    stored_gb = 3 * cluster.bytes_per_s * cluster.retention_days * 86_400 / _GB * cluster.disk_headroom
    cores = 3 * cluster.bytes_per_s / cluster.bytes_per_core_s / 3
    return Bill(
        parts={
            "between zones": month_gb * (2 / 3 + 2 + read) * prices.between_zones_per_gb,
            "disks": stored_gb * prices.disk_per_gb_month,
            "brokers": max(3.0, cores) * MONTH_S / 3600 * prices.broker_core_hour,
        }
    )
