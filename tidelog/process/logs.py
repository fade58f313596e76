"""Log lines: one event with fields per line, on stderr, as key=value or JSON.

The caller passes fields as `extra`. A secret must never be a field. Settings hold secrets as `SecretStr`,
which prints as stars.
"""

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_QUIET = (
    "py4j",
    "urllib3",
    "httpx",
    "httpcore",
    "asyncio",
    "uvicorn",
    "numba",
    "pyiceberg",
    "botocore",  # its debug lines hold what KMS and STS answer
    "aiobotocore",
)

_MOST_AT_ONCE, _KIND_AGAIN_AFTER_S = 20, 10.0
_STATE_AGAIN_AFTER_S = 60.0
_MOST_KINDS = 1_000
_NUMBERS = re.compile(r"\d+")


class _Allowance:
    """Lets `most` lines through per `again_after_s`, then one per `again_after_s` while more keep coming."""

    __slots__ = ("_again_after_s", "_allowed", "_count", "_most", "_since_s")

    def __init__(self, most: int, again_after_s: float, now_s: float) -> None:
        self._most = self._allowed = most
        self._again_after_s = again_after_s
        self._since_s = now_s
        self._count = 0

    def take(self, now_s: float) -> int | None:
        """None to drop this line, otherwise the number of lines that were dropped before it."""
        kept_back = 0
        if now_s - self._since_s >= self._again_after_s:
            kept_back = max(0, self._count - self._allowed)
            self._allowed = 1 if kept_back else self._most
            self._since_s, self._count = now_s, 0
        self._count += 1
        return kept_back if self._count <= self._allowed else None


class FewerRepeats(logging.Filter):
    """Keeps a state that lasts, or a client that retries for ever, from filling the log.

    - A warning that differs from an earlier one only in numbers is written once a minute. If its module logs
      a line that is not a warning, the state is over, and the next such warning is written.
    - Of one kind, 20 lines are written in ten seconds, then one every ten seconds while they keep coming. A
      kind is a message before its values are filled in.
    - The next line says how many were dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], _Allowance] = {}
        self._states: dict[str, dict[str, _Allowance]] = {}
        """By module, because all modules of Tidelog share one logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        if len(self._kinds) > _MOST_KINDS:  # some libraries put values into their messages
            self._kinds.clear()
            self._states.clear()
        of_state = self._take_state(record)
        of_kind = None if of_state is None else self._take_kind(record)
        if of_state is None or of_kind is None:
            return False
        if of_state or of_kind:
            record.not_told_before = of_state + of_kind
        return True

    def _take_state(self, record: logging.LogRecord) -> int | None:
        if record.levelno < logging.WARNING:
            self._states.pop(record.pathname, None)
            return 0
        states = self._states.setdefault(record.pathname, {})
        if len(states) > _MOST_KINDS:
            states.clear()
        now_s, text = record.created, _but_for_numbers(record)
        state = states.get(text) or states.setdefault(text, _Allowance(1, _STATE_AGAIN_AFTER_S, now_s))
        return state.take(now_s)

    def _take_kind(self, record: logging.LogRecord) -> int | None:
        now_s, name = record.created, (record.pathname, str(record.msg))
        kind = self._kinds.get(name) or self._kinds.setdefault(
            name, _Allowance(_MOST_AT_ONCE, _KIND_AGAIN_AFTER_S, now_s)
        )
        return kind.take(now_s)


def _but_for_numbers(record: logging.LogRecord) -> str:
    texts = [
        record.getMessage(),
        *(str(value) for name, value in vars(record).items() if name not in _STANDARD),
    ]
    if record.exc_info is not None:
        texts.append(repr(record.exc_info[1]))
    return _NUMBERS.sub("", " ".join(texts))


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
    """Sets this process's log handlers. Of libraries, only warnings and errors are written."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else KeyValueLines())
    handler.addFilter(FewerRepeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    _configure_audit(root.level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _configure_audit(level: int) -> None:
    """Lines of the audit trail are whole JSON objects. No rule about repeats or levels drops one, but debug
    lines need the level debug.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    trail = logging.getLogger("tidelog.audit")
    trail.handlers[:] = [handler]
    trail.propagate = False
    trail.setLevel(min(logging.INFO, level))


def _quoted(value: Any) -> str:
    text = str(value)
    plain = text != "" and all(letter.isprintable() and letter not in ' "=' for letter in text)
    if plain:
        return text
    # Some readers break lines at U+2028 or U+0085, and terminals obey U+009B: JSON escapes none of them.
    return "".join(
        letter if letter.isprintable() else json.dumps(letter)[1:-1]
        for letter in json.dumps(text, ensure_ascii=False)
    )
