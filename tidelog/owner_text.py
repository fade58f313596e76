"""Explains who owns the bucket, for `tidelog doctor` and `tidelog recover`. Pure."""

from datetime import datetime

from sequencer.cluster.ownership import OwnershipState
from sequencer.cluster.ownership_rules import OwnerObject
from tidelog.output import as_text


def owner_text(owner: OwnerObject | None, state: OwnershipState, now: datetime) -> str:
    """Two lines: what the object in the bucket says, and what this database knows of it."""
    if owner is None:
        said = "The bucket names no owner."
    else:
        age = as_text((now - owner.written_at).total_seconds())
        said = (
            f"The bucket names cluster {owner.cluster_id}, epoch {owner.epoch}, written {age} ago by "
            f"{owner.writer}."
        )
    if state.lost_because is not None:
        return f"{said}\nThis database does not own it: {state.lost_because}."
    if state.is_confirmed and state.confirmed_age_s is not None:
        confirmed = f"was confirmed {as_text(state.confirmed_age_s)} ago"
    else:
        confirmed = "is not confirmed now"
    return f"{said}\nThis database has epoch {state.epoch}; its ownership {confirmed}."
