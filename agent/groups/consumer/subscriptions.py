"""Regular expressions that members of the new protocol subscribe with (KIP-848, `SubscribedTopicRegex`).

Google's RE2, as in Kafka: a match takes time linear in the topic's name whatever the expression, so no client can keep
the event loop busy. An expression matches a whole name. Both its length and the size of the program it compiles to are
bounded.
"""

from collections.abc import Iterable
from functools import lru_cache

import re2

_COMPILED_KEPT = 256
_PATTERN_MEMORY_BYTES = 1 << 20
"""What RE2 may use for a pattern's program and the states that it caches while matching."""


class InvalidRegex(Exception):
    """The text says what is wrong, in Kafka's words."""


def matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    """The names that the expression matches as a whole. It must have been checked."""
    pattern = _compiled(regex)
    return frozenset(name for name in names if pattern.fullmatch(name) is not None)


def check_regex(regex: str, *, max_length: int, max_program_size: int) -> None:
    """Raises `InvalidRegex` for what does not compile or is too large."""
    if len(regex) > max_length:
        raise InvalidRegex(f"SubscribedTopicRegex is longer than {max_length} characters.")
    try:
        program_size = _compile(regex).programsize
    except re2.error as error:
        reason = error.args[0] if error.args else b"invalid"
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegex(f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}.") from error
    if program_size > max_program_size:
        raise InvalidRegex(f"SubscribedTopicRegex `{regex}` is too complex.")


@lru_cache(maxsize=_COMPILED_KEPT)
def _compiled(regex: str) -> "re2._Regexp":
    return _compile(regex)


def _compile(regex: str) -> "re2._Regexp":
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _PATTERN_MEMORY_BYTES
    return re2.compile(regex, options)
