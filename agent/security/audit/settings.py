"""The settings of the audit trail: options of `tidelog agent` and variables `TIDELOG_<NAME>`."""

from pydantic import Field

from storage.settings import Settings


class AuditSettings(Settings):
    audit_log: bool = True
    """Each login, refusal and administrative change is a JSON line on stderr (docs/audit.md)."""
    audit_topic: bool = False
    """The same events go to the topic `__tidelog_audit`, which agents create and no client can write."""
    audit_events_per_s: float = Field(default=1_000.0, gt=0)
    """The most events per second and agent of each kind. Further ones are counted, and the next event
    `events lost` says how many.
    """
    audit_refusals_per_s: float = Field(default=20.0, gt=0)
    """The same for what strangers can cause without any right: failed logins, refusals, and changes of which
    none was made.
    """
    audit_buffer_bytes: int = Field(default=4_194_304, ge=65_536)
    """Events that wait to be written to the topic. Past it new ones are lost to the topic, and counted."""
