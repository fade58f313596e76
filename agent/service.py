"""What the HTTP side sees of an agent that may not have reached its store or database yet (DESIGN §10: start degraded and retry)."""

from dataclasses import dataclass, field

from agent.parts import Parts
from agent.settings import AgentSettings


@dataclass(slots=True, kw_only=True)
class Service:
    """Owned by agent/app.py, which alone writes to it; `/ready` answers 503 with `unready` unless that is empty."""

    settings: AgentSettings
    parts: Parts | None = None
    """None until the store and the database were reached."""
    unready: dict[str, str] = field(default_factory=lambda: {"agent": "starting"})
    """What keeps the agent from serving: the part's name and what a person can do about it."""
