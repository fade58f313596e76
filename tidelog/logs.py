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


def _quoted(value: Any) -> str:
    text = str(value)
    plain = text != "" and all(letter.isprintable() and letter not in ' "=' for letter in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
