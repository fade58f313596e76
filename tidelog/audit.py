"""The audit events of commands that write to Postgres themselves (docs/audit.md#commands): a line of JSON on
stderr, as an agent's. Who may use the database may change it without any command, so the command's own word
is all the record there can be; what collects its stderr keeps it.

Promises:
- The event is written after the change, whether it succeeds or not. If its outcome is not known, it says so.
- It has no secret: names and numbers alone.
"""

import getpass
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent.security.audit.events import NO_ERROR, UNKNOWN, Asker, Resource, events_of_change
from agent.security.audit.settings import AuditSettings
from sequencer.database.database import CommitOutcomeUnknown
from tidelog.errors import UserError
from tidelog.process.environment import Environment

_REFUSED = "REFUSED"


@contextmanager
def audited(
    environment: Environment, command: str, resource_type: str, name: str, **change: object
) -> Iterator[None]:
    """Around a change."""
    outcome, reason = UNKNOWN, ""
    try:
        yield
        outcome = NO_ERROR
    except UserError as error:
        reason = error.message
        # The command turns an unknown outcome into a text for its user.
        outcome = UNKNOWN if isinstance(error.__context__, CommitOutcomeUnknown) else _REFUSED
        raise
    finally:
        if environment.read(AuditSettings).audit_log:
            texts = {key: str(value) for key, value in change.items() if value is not None}
            resource = Resource(type=resource_type, name=name, outcome=outcome, change=texts)
            asker = Asker(principal=f"os:{_user()}", address=socket.gethostname(), listener="command")
            for event in events_of_change(asker, command, [resource], reason):
                event_id = f"{secrets.token_hex(8)}-1"
                sys.stderr.write(event.as_line(time.time(), event_id, None) + "\n")
            sys.stderr.flush()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())
