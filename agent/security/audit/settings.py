"""The settings of the audit trail: options of `tidelog agent` and variables `TIDELOG_<NAME>`."""

from pydantic import Field

from storage.settings import Settings


class AuditSettings(Settings):
    audit_log: bool = True
    """Writes each login, refusal and administrative change as a JSON line to stderr (docs/audit.md)."""
    audit_topic: bool = False
    """Also writes the events to the topic `__tidelog_audit`, which agents create and no client can write."""
    audit_events_per_s: float = Field(default=1_000.0, gt=0)
    """The most events of each kind that an agent writes per second. It counts the others, and the next event
    `events lost` says how many there were.
    """
    audit_refusals_per_s: float = Field(default=20.0, gt=0)
    """The same for each kind that clients without any right can cause: failed logins, refusals, and refused
    changes.
    """
    audit_refusals_of_host_per_s: float = Field(default=5.0, gt=0)
    """The same for each host that causes them, so that one host does not hide what others do."""
    audit_buffer_bytes: int = Field(default=4_194_304, ge=65_536)
    """The most bytes of events that wait for the topic. Further events are counted and do not get there."""
