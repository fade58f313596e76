"""Checks of the values of topic configs; definitions of configs are made of them (pure)."""

import base64
import json
import re
from collections.abc import Callable
from typing import TypeAlias

Check: TypeAlias = Callable[[str], None]

LARGEST_SCHEMA = 32_767
"""Characters: what a string of Kafka's protocol may have in all versions."""
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


class InvalidConfig(Exception):
    """The name is unknown or the value is not acceptable. The message says what would be."""


def refused(name: str, value: str, reason: str) -> InvalidConfig:
    return InvalidConfig(f"Invalid value {value[:100]} for configuration {name}: {reason}")


def whole_number(name: str, minimum: int, maximum: int, hint: str = "") -> Check:
    def check(value: str) -> None:
        if not _WHOLE_NUMBER.fullmatch(value.strip()):
            raise refused(name, value, "Not a number")
        if not minimum <= int(value) <= maximum:
            raise refused(name, value, f"Value must be between {minimum} and {maximum}{hint}")

    return check


def share(name: str) -> Check:
    """A number from 0 to 1."""

    def check(value: str) -> None:
        try:
            number = float(value)
        except ValueError:
            raise refused(name, value, "Not a number") from None
        if not 0.0 <= number <= 1.0:
            raise refused(name, value, "Value must be between 0 and 1")

    return check


def one_of(name: str, allowed: tuple[str, ...], hint: str = "") -> Check:
    def check(value: str) -> None:
        if value.strip() not in allowed:
            raise refused(name, value, f"must be {' or '.join(filter(None, allowed))}. {hint}".rstrip())

    return check


def schema_text(name: str) -> Check:
    """JSON, or base64 of a set of Protobuf descriptors."""

    def check(value: str) -> None:
        if len(value) > LARGEST_SCHEMA:
            raise refused(name, value, f"at most {LARGEST_SCHEMA} characters, use a schema registry")
        if not value:
            return
        try:
            if value.lstrip()[:1] in ("{", "[", '"'):
                json.loads(value)
            else:
                base64.b64decode(value, validate=True)
        except (ValueError, RecursionError) as error:
            raise refused(
                name,
                value,
                f"must be a JSON Schema or an Avro schema in JSON, or a FileDescriptorSet in base64 "
                f"({error})",
            ) from None

    return check


def list_of(name: str, allowed: tuple[str, ...]) -> Check:
    """Some of `allowed`, separated by commas, or nothing."""

    def check(value: str) -> None:
        named = [item.strip() for item in value.split(",")] if value.strip() else []
        if not set(named) <= set(allowed):
            raise refused(name, value, f"must be {' or '.join(allowed)}, or several, separated by commas")

    return check


def always(name: str, value_kept: str, why: str) -> Check:
    """A boolean that has only one value here."""

    def check(value: str) -> None:
        if value.strip().lower() not in ("true", "false"):
            raise refused(name, value, "Expected value to be either true or false")
        if value.strip().lower() != value_kept:
            raise refused(name, value, f"only {value_kept} is available. {why}")

    return check
