"""When a segment stops taking batches and is uploaded (docs/design/write-path.md#sealing).

Pure: the caller owns the clock and does the upload. Promises that no batch waits longer than `linger_s`, that a full
segment does not wait, and that the PUT budget is never overdrawn by choice: only age, size or full windows may overdraw
it. Full windows have a budget of their own.
"""

from dataclasses import dataclass
from enum import Enum

from agent.write_path.put_budget import PutBudget


class SealReason(Enum):
    SIZE = "size"
    AGE = "age"
    TOKEN = "token"
    WINDOW = "window"
    """Waiting brings nothing: those who wait for its answers have no request left to send."""
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSegment:
    """What waits to be sealed. `oldest_arrival_s` is None while nothing does."""

    size_bytes: int
    oldest_arrival_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealPolicy:
    segment_size_bytes: int
    linger_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SealDue:
    """`at_s` may be in the past: then it is due now."""

    at_s: float
    reason: SealReason


def seal_due(
    segment: OpenSegment,
    policy: SealPolicy,
    budget: PutBudget,
    *,
    draining: bool = False,
    windows_full_at_s: float | None = None,
) -> SealDue | None:
    """When to seal, in monotonic seconds, or None while the segment is empty. `windows_full_at_s`: from when on waiting
    brings nothing and is paid for."""
    arrived_s = segment.oldest_arrival_s
    if arrived_s is None:
        return None
    if segment.size_bytes >= policy.segment_size_bytes:
        return SealDue(at_s=arrived_s, reason=SealReason.SIZE)
    if draining:
        return SealDue(at_s=arrived_s, reason=SealReason.DRAIN)
    aged_s = arrived_s + policy.linger_s
    token_s = max(arrived_s, budget.token_at_s())
    full_s = aged_s if windows_full_at_s is None else max(arrived_s, windows_full_at_s)
    if token_s <= min(full_s, aged_s):
        return SealDue(at_s=token_s, reason=SealReason.TOKEN)
    if full_s < aged_s:
        return SealDue(at_s=full_s, reason=SealReason.WINDOW)
    return SealDue(at_s=aged_s, reason=SealReason.AGE)
