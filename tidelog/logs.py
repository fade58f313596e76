"""Log lines: one event with fields per line, on stderr, as key=value or JSON.

Fields are what the caller passes as `extra`. A secret must never be a field: settings hold them as `SecretStr`, which
prints as stars.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_QUIET = ("urllib3", "httpx", "httpcore", "asyncio", "uvicorn", "numba", "pyiceberg")


_LIMITED = ("uvicorn.error", "psycopg.pool", "agent.kafka.connection")
"""What a client or a database at fault makes these say, it makes them say again with each of its attempts."""
_MOST_AT_ONCE, _AGAIN_AFTER_S, _MOST_KINDS = 20, 10.0, 1_000


class FewerRepeats(logging.Filter):
    """Lets the first lines of a kind through, then as many again every ten seconds, and says how many it kept back.

    A kind is a message before its values are put in.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, int]] = {}
        """Since when, and how many lines since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if len(self._kinds) > _MOST_KINDS:  # a library that puts values into its messages
            self._kinds.clear()
        kind = str(record.msg)
        since_s, count = self._kinds.get(kind, (record.created, 0))
        if record.created - since_s >= _AGAIN_AFTER_S:
            if count > _MOST_AT_ONCE:
                record.not_told_before = count - _MOST_AT_ONCE
            since_s, count = record.created, 0
        self._kinds[kind] = (since_s, count + 1)
        return count < _MOST_AT_ONCE


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        fields.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields["error"] = repr(record.exc_info[1])
            fields["trace"] = "".join(traceback.format_exception(record.exc_info[1]))
        return self.line(fields)

    def line(self, fields: dict[str, Any]) -> str:
        """One line without a line break."""
        raise NotImplementedError


class KeyValueLines(_Lines):
    """`at=... level=info event="agent ready" kafka_port=9092`."""

    def line(self, fields: dict[str, Any]) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


class JsonLines(_Lines):
    """One JSON object."""

    def line(self, fields: dict[str, Any]) -> str:
        return json.dumps(fields, default=str)


def configure_logs(form: str, level: str) -> None:
    """Sets this process's log handlers; libraries are heard from `warning` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else KeyValueLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in _LIMITED:
        logging.getLogger(name).filters[:] = [FewerRepeats()]


def _quoted(value: Any) -> str:
    text = str(value)
    plain = text != "" and all(letter.isprintable() and letter not in ' "=' for letter in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
