"""The client instances that push their metrics here, and whether a request of one may be taken now (KIP-714).
Pure.

Promises:
- At most `most` instances are remembered, and at most `most_bytes` of their values. The instance that was
  silent longest goes first.
- An instance is forgotten three push intervals after its last request, or a minute after its final push.
- An instance that asks or pushes more often than its interval is throttled.
- A subscription's id is the same at every agent with the same settings. So a client may push to another agent
  than the one that gave it the subscription.
"""

import math
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias
from uuid import UUID

LAST_WORDS_S: Final = 60.0
LONGEST_TEXT: Final = 200
"""Characters kept of any name or value from a client."""
_SERIES_BYTES, _TEXT_BYTES = 250, 90
_TOLERANCE: Final = 0.9  # a client's timer and the network delay are not exact
_FIRST_CLIENT_ID: Final = 2  # Kafka reserves ids 0 and 1

Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name and its attributes."""


class TelemetryFault(Enum):
    """Why a request is refused. Kafka's codes for these are in agent/error_codes.py."""

    INVALID_REQUEST = auto()
    THROTTLED = auto()
    UNKNOWN_SUBSCRIPTION = auto()
    UNSUPPORTED_COMPRESSION = auto()
    TOO_LARGE = auto()
    INVALID_RECORD = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What clients are asked to push, and how often. The same for all."""

    metrics: tuple[str, ...]
    """Prefixes of names. Empty: nothing is asked for."""
    interval_s: float
    max_bytes: int

    def id_for(self, instance_id: UUID) -> int:
        """Returns a signed 32-bit number."""
        asked = zlib.crc32(f"{','.join(self.metrics)}/{self.interval_s}".encode()) ^ (
            instance_id.int & 0xFFFFFFFF
        )
        return asked - (1 << 32) if asked >= 1 << 31 else asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """The facts of a client's push that decide whether it is taken."""

    instance_id: UUID | None
    subscription_id: int
    is_terminating: bool
    is_known_compression: bool
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one metric."""

    series: Series
    value: float
    is_delta: bool


@dataclass(slots=True, kw_only=True)
class _Instance:
    """Owned by ClientInstances."""

    asked_s: float = -math.inf
    pushed_s: float = -math.inf
    heard_s: float
    is_terminating: bool = False
    may_ask_again: bool = False
    client_id: str = ""
    values: dict[Series, float] = field(default_factory=dict)
    size_bytes: int = 0
    """The size of the values."""


class ClientInstances:
    """`now_s` is monotonic."""

    def __init__(self, subscription: Subscription, most: int, most_series: int, most_bytes: int) -> None:
        self.subscription = subscription
        self._most = most
        self._most_series = most_series
        self._most_bytes = most_bytes
        self._size_bytes = 0
        self._instances: OrderedDict[UUID, _Instance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._instances)

    def ask(
        self, instance_id: UUID | None, new_id: Callable[[], UUID], now_s: float
    ) -> UUID | TelemetryFault:
        """Returns the id of the instance that asks for its subscription, a new one if it has none yet."""
        known_as = new_id() if instance_id is None or instance_id.int < _FIRST_CLIENT_ID else instance_id
        instance = self._heard_of(known_as, now_s)
        if not self._is_due(max(instance.asked_s, instance.pushed_s), now_s):
            if not instance.may_ask_again:
                return TelemetryFault.THROTTLED
        else:
            instance.asked_s = now_s
        instance.may_ask_again = False
        return known_as

    def check(self, push: Push, now_s: float) -> TelemetryFault | None:
        """Returns why a push is refused, or None."""
        if push.instance_id is None or push.instance_id.int < _FIRST_CLIENT_ID:
            return TelemetryFault.INVALID_REQUEST
        instance = self._heard_of(push.instance_id, now_s)
        fault = self._fault(instance, push, now_s)
        instance.is_terminating = push.is_terminating
        instance.may_ask_again = fault in (
            TelemetryFault.UNKNOWN_SUBSCRIPTION,
            TelemetryFault.UNSUPPORTED_COMPRESSION,
        )
        return fault

    def take(self, instance_id: UUID, client_id: str, samples: Sequence[Sample], now_s: float) -> int:
        """Replaces what the instance pushed before. Returns how many samples were beyond the bound."""
        instance = self._heard_of(instance_id, now_s)
        instance.client_id = client_id
        values: dict[Series, float] = {}
        beyond = 0
        for sample in samples:
            if sample.series not in values and len(values) >= self._most_series:
                beyond += 1
                continue
            before = (
                values.get(sample.series, instance.values.get(sample.series, 0.0)) if sample.is_delta else 0.0
            )
            values[sample.series] = before + sample.value
        self._keep(instance, values)
        return beyond

    def current(self, now_s: float) -> Iterator[tuple[UUID, str, Mapping[Series, float]]]:
        """Returns instance id, client id and values of each instance that has pushed and is not forgotten."""
        self._forget_silent(now_s)
        for instance_id, instance in self._instances.items():
            if instance.values:
                yield instance_id, instance.client_id, instance.values

    def _fault(self, instance: _Instance, push: Push, now_s: float) -> TelemetryFault | None:
        if instance.is_terminating:
            return TelemetryFault.INVALID_REQUEST
        has_just_asked = instance.asked_s > instance.pushed_s
        if not has_just_asked and not push.is_terminating and not self._is_due(instance.pushed_s, now_s):
            return TelemetryFault.THROTTLED
        instance.pushed_s = now_s
        if push.instance_id is None or push.subscription_id != self.subscription.id_for(push.instance_id):
            return TelemetryFault.UNKNOWN_SUBSCRIPTION
        if not push.is_known_compression:
            return TelemetryFault.UNSUPPORTED_COMPRESSION
        if push.size_bytes > self.subscription.max_bytes:
            return TelemetryFault.TOO_LARGE
        return None

    def _is_due(self, last_s: float, now_s: float) -> bool:
        return now_s - last_s >= self.subscription.interval_s * _TOLERANCE

    def _heard_of(self, instance_id: UUID, now_s: float) -> _Instance:
        self._forget_silent(now_s)
        instance = self._instances.get(instance_id)
        if instance is None:
            instance = self._instances[instance_id] = _Instance(heard_s=now_s)
            if len(self._instances) > self._most:
                self._forget(next(iter(self._instances)))
        instance.heard_s = now_s
        self._instances.move_to_end(instance_id)
        return instance

    def _forget_silent(self, now_s: float) -> None:
        patience_s = max(LAST_WORDS_S, 3 * self.subscription.interval_s)
        gone = [
            instance_id
            for instance_id, instance in self._instances.items()
            if now_s - instance.heard_s > (LAST_WORDS_S if instance.is_terminating else patience_s)
        ]
        for instance_id in gone:
            self._forget(instance_id)

    def _keep(self, instance: _Instance, values: dict[Series, float]) -> None:
        size_bytes = sum(map(_size_bytes, values))
        self._size_bytes += size_bytes - instance.size_bytes
        instance.values, instance.size_bytes = values, size_bytes
        while self._size_bytes > self._most_bytes:
            self._forget(next(iter(self._instances)))

    def _forget(self, instance_id: UUID) -> None:
        self._size_bytes -= self._instances.pop(instance_id).size_bytes


def _size_bytes(series: Series) -> int:
    """Returns about how much memory a series takes: its objects and its texts, at four bytes per
    character.
    """
    name, attributes = series
    texts = [name, *(text for attribute in attributes for text in attribute)]
    return _SERIES_BYTES + sum(
        _TEXT_BYTES + (len(text) if text.isascii() else 4 * len(text)) for text in texts
    )
